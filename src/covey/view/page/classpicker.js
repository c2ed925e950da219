// A field that finds a class by its name or id: a combobox with the first matches.

import { className, countOf, fill, h } from "./dom.js";

const MAX_MATCHES = 30;
let fields = 0;

/**
 * Return the element of a field.
 *
 * Args: `table` (classtable.js), `chosen` (the class id or null), `onchange(id)` (null for none).
 */
export function classPicker(table, chosen, onchange) {
  fields += 1;
  const listId = `classes-${fields}`;
  const list = h("ul", { id: listId, role: "listbox", class: "picker-list", "aria-label": "Classes", hidden: true });
  const input = h("input", {
    type: "text", role: "combobox", name: "class", autocomplete: "off", spellcheck: "false", placeholder: "all",
    "aria-expanded": "false", "aria-controls": listId, "aria-autocomplete": "list",
  });
  const clear = h("button", { type: "button", class: "picker-clear", "aria-label": "All classes" }, "×");
  clear.addEventListener("click", () => choose(null));
  let matches = [];
  let active = -1;

  function nameOf(id) {
    const position = id === null ? -1 : table.position(id);
    return position < 0 ? (id === null ? "" : `class ${id}`) : className(table.name(position), 80);
  }

  function choose(id) {
    chosen = id;
    close();
    onchange(id);
  }

  function close() {
    list.hidden = true;
    active = -1;
    input.value = nameOf(chosen);
    clear.hidden = chosen === null;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function open() {
    const text = input.value.trim();
    const found = text ? table.search(text, MAX_MATCHES) : table.bySize().subarray(0, MAX_MATCHES);
    const byId = table.position(text);
    matches = byId >= 0 ? [byId, ...[...found].filter((each) => each !== byId)] : [...found];
    fill(list, matches.length ? matches.map(option) : h("li", { class: "muted picker-none" }, "no class"));
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    mark(text && matches.length ? 0 : -1);
  }

  function option(position, index) {
    return h(
      "li",
      { role: "option", id: `${listId}-${index}`, "aria-selected": "false", onpointerdown: (event) => {
        event.preventDefault(); // the input keeps the focus
        choose(table.ids[position]);
      } },
      h("span", { class: "picker-name" }, className(table.name(position), 80)),
      h("span", { class: "muted" }, countOf(table.counts[position], "example")),
    );
  }

  function mark(index) {
    list.children[active]?.setAttribute("aria-selected", "false");
    active = index;
    const element = index < 0 ? null : list.children[index];
    element?.setAttribute("aria-selected", "true");
    element?.scrollIntoView({ block: "nearest" });
    if (element) input.setAttribute("aria-activedescendant", element.id);
    else input.removeAttribute("aria-activedescendant");
  }

  input.addEventListener("focus", () => input.select());
  input.addEventListener("click", () => list.hidden && open());
  input.addEventListener("input", open);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) open();
      else if (matches.length) mark((active + (event.key === "ArrowDown" ? 1 : -1) + matches.length) % matches.length);
    } else if (event.key === "Enter") {
      if (!list.hidden && active >= 0) choose(table.ids[matches[active]]);
      else if (input.value.trim() === "") choose(null);
    } else if (event.key === "Escape" && !list.hidden) {
      event.preventDefault();
      close();
    }
  });
  close();
  return h("div", { class: "picker" }, h("label", {}, "Class", input), clear, list);
}
