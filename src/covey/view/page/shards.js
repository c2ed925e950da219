// The shards of a split: sizes, whether they are there, and the check of their records.

import { getJson } from "./api.js";
import { countOf, display, fill, formatBytes, formatNumber, h } from "./dom.js";

const PAGE = 50;

/** Return a table that scrolls if it is too wide. The heads that are `numbers` are aligned to the right. */
export function dataTable(label, heads, body, numbers = []) {
  const cell = (head) => h("th", { scope: "col", class: numbers.includes(head) ? "number" : null }, head);
  return h("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": label },
    h("table", { class: "table" }, h("thead", {}, h("tr", {}, heads.map(cell))), body));
}

/** Return the panel of the shards of a split. */
export async function shardsPanel(split, signal) {
  const body = h("tbody", {});
  const note = h("p", { class: "muted", role: "status" });
  const more = h("button", { type: "button", dataset: { action: "more" }, onclick: () => load() }, "Show more");
  const checks = []; // functions that check a shard
  const all = h("button", { type: "button", dataset: { action: "check-all" } }, "Check all shown");
  all.addEventListener("click", () => checkAll());
  let offset = 0;

  async function load() {
    const found = await getJson("shards", { split: split.name, offset, limit: PAGE }, signal);
    for (const shard of found.shards) {
      const { element, check } = shardRow(split, shard, signal);
      body.append(element);
      if (check) checks.push(check);
    }
    offset += found.shards.length;
    more.hidden = offset >= found.total || !found.shards.length;
    note.textContent = offset < found.total ? `${formatNumber(offset)} of ${countOf(found.total, "shard")}` : "";
    all.hidden = checks.length < 2;
  }

  async function checkAll() {
    all.disabled = true;
    for (const check of checks) if (!signal.aborted) await check();
    all.disabled = false;
  }

  await load();
  const heads = ["Shard", "Size", "Examples", "State", "Checksums"];
  return h("section", { class: "panel" },
    h("div", { class: "controls" }, h("h3", {}, "Shards"), all),
    dataTable("Shards", heads, body, heads.slice(1, 3)),
    h("div", { class: "controls" }, note, more));
}

function shardRow(split, { name, bytes, records, state }, signal) {
  const isThere = state !== "missing";
  const result = h("span", { class: "muted", role: "status" });
  const label = `Check ${display(name, 80)}`;
  const button = h("button", { type: "button", class: "small-button", "aria-label": label }, "Check");
  button.addEventListener("click", () => check());

  async function check() {
    button.disabled = true;
    result.textContent = "reading…";
    try {
      fill(result, checkResult(await getJson("check", { split: split.name, shard: name }, signal)));
    } catch (error) {
      if (!signal.aborted) fill(result, h("span", { class: "bad" }, display(error.message, 500)));
    }
    button.disabled = false;
  }

  const element = h(
    "tr",
    { dataset: { shard: name } },
    h("th", { scope: "row", class: "mono" }, display(name, 300)),
    h("td", { class: "number" }, bytes === null ? "-" : formatBytes(bytes)),
    h("td", { class: "number" }, records === null ? "-" : formatNumber(records)),
    h("td", {}, state === "ok" ? "ok" : h("span", { class: "bad" }, display(state, 100))),
    h("td", {}, isThere && button, " ", result),
  );
  return { element, check: isThere ? check : null };
}

/** Return the outcome of a check. */
function checkResult({ records, problems, unlisted, stopped }) {
  const end = stopped ? `; stopped after ${countOf(records, "record")}` : "";
  if (!problems.length) {
    const left = unlisted ? `, ${countOf(unlisted, "record")} not in the index` : "";
    return `${countOf(records, "record")} valid${left}${end}`;
  }
  const lines = problems.map(({ record, offset, reason }) => {
    const number = (record ?? null) === null ? "" : `record ${formatNumber(record)}, `;
    return h("li", {}, `${number}byte ${formatNumber(offset)}: ${display(reason, 300)}`);
  });
  const count = h("span", { class: "bad" }, `${countOf(problems.length, "problem")}${end}`);
  return [count, h("ul", { class: "problems" }, lines)];
}
