// The shards of a split: their sizes, and whether they are there.

import { getJson } from "./api.js";
import { countOf, display, formatBytes, formatNumber, h } from "./dom.js";

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
  let offset = 0;

  async function load() {
    const found = await getJson("shards", { split: split.name, offset, limit: PAGE }, signal);
    body.append(...found.shards.map(shardRow));
    offset += found.shards.length;
    more.hidden = offset >= found.total || !found.shards.length;
    note.textContent = offset < found.total ? `${formatNumber(offset)} of ${countOf(found.total, "shard")}` : "";
  }

  await load();
  const heads = ["Shard", "Size", "Examples", "State"];
  return h("section", { class: "panel" }, h("h3", {}, "Shards"), dataTable("Shards", heads, body, heads.slice(1, 3)),
    h("div", { class: "controls" }, note, more));
}

function shardRow({ name, bytes, records, state }) {
  return h(
    "tr",
    { dataset: { shard: name } },
    h("th", { scope: "row", class: "mono" }, display(name, 300)),
    h("td", { class: "number" }, bytes === null ? "-" : formatBytes(bytes)),
    h("td", { class: "number" }, records === null ? "-" : formatNumber(records)),
    h("td", {}, state === "ok" ? "ok" : h("span", { class: "bad" }, display(state, 100))),
  );
}
