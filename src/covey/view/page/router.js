// The URL of a view: #/examples?split=train&class=3. Every view can be reached by its URL.

/** Return `{view, parameters}` of the current URL. */
export function current() {
  const [path, query = ""] = window.location.hash.replace(/^#\/?/, "").split("?");
  return { view: path || "overview", parameters: Object.fromEntries(new URLSearchParams(query)) };
}

/** Return the hash of a view; empty parameters are omitted. */
export function hash(view, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "" && value !== false) query.set(name, value === true ? "1" : value);
  }
  const text = query.toString();
  return `#/${view}${text ? `?${text}` : ""}`;
}

/** Show a view, with an entry in the history. */
export function go(view, parameters) {
  window.location.hash = hash(view, parameters);
}

/** Change the parameters of the URL, without a new entry in the history and without showing the view again. */
export function replace(view, parameters) {
  window.history.replaceState(null, "", hash(view, parameters));
}

/** Return a parameter of the URL that must be one of some values; `initial` if the URL does not have it. */
export function choiceOf(parameters, name, allowed, initial = allowed[0]) {
  const value = parameters[name];
  if (value === undefined) return initial;
  if (allowed.includes(value)) return value;
  const values = allowed.length ? `must be one of ${allowed.join(", ")}` : "there is none";
  throw new Error(`The ${name} in the URL is "${value.slice(0, 80)}"; ${values}.`);
}
