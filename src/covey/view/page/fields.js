// Fields: choices, check boxes, integers and classes.

import { className, countOf, fill, h } from "./dom.js";

const MAX_MATCHES = 30;

let fields = 0;

/** Return a field of choices: pairs of a value and a text. */
export function choice(label, name, options, value, onchange) {
  const select = h("select", { name, "aria-label": label ? null : name, onchange: () => onchange(select.value) },
    options.map(([each, text]) => h("option", { value: each, selected: each === value }, text)));
  return h("label", {}, label, select);
}

/** Return a check box with a label. */
export function checkbox(label, name, checked, onchange) {
  const box = h("input", { type: "checkbox", name, checked, onchange: () => onchange(box.checked) });
  return h("label", {}, box, label);
}

/** Return a field for an integer from `low` to `high`; `onchange` gets its digits when it is left, or with Enter. */
export function integerField(label, name, value, { low = 1, high = 16384, placeholder = "" }, onchange) {
  const input = h("input", {
    type: "number", name, value, placeholder, class: "short", min: low, max: high, step: 1,
    onchange: () => {
      input.setAttribute("aria-invalid", String(!input.validity.valid));
      if (input.validity.valid) onchange(input.value);
    },
  });
  return h("label", {}, label, input);
}

/** Return a field that finds a class by a part of its name, or by its id; `onchange` gets the id or null. */
export function classField(table, chosen, onchange) {
  fields += 1;
  const nameOf = (id) => (id === null ? "" : className(table.name(table.position(id)), 500));
  const list = h("datalist", { id: `classes-${fields}` });
  const input = h("input", {
    type: "text", name: "class", list: list.id, autocomplete: "off", placeholder: "all", value: nameOf(chosen),
    maxlength: 1000,
    oninput: () => {
      const found = table.search(input.value, MAX_MATCHES);
      fill(list, found.map((each) => h("option", { value: className(table.name(each), 500) },
        `${table.ids[each]}: ${countOf(table.counts[each], "example")}`)));
    },
    onfocus: () => input.dispatchEvent(new Event("input")),
    onchange: () => {
      const wanted = input.value.trim();
      const matches = wanted ? table.search(wanted, MAX_MATCHES) : [];
      const named = matches.find((each) => nameOf(table.ids[each]) === wanted);
      const found = named ?? (table.position(wanted) < 0 ? matches[0] : table.position(wanted));
      input.setAttribute("aria-invalid", String(wanted !== "" && found === undefined));
      if (wanted && found === undefined) return;
      const id = wanted ? table.ids[found] : null;
      input.value = nameOf(id);
      onchange(id);
    },
  });
  return h("label", {}, "Class", input, list);
}
