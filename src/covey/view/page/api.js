// Requests to the server: JSON, and streams of JSON lines. Arrays in JSON are base64.

/** Return the URL of a request; parameters that are null, undefined or empty are omitted. */
export function url(path, parameters = {}) {
  const found = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(found).toString();
  return `/api/${path}${query ? `?${query}` : ""}`;
}

async function request(path, parameters, options) {
  const response = await fetch(url(path, parameters), { credentials: "same-origin", ...options });
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  throw new Error(error ?? `${response.status} ${response.statusText}`);
}

/** Return values of JSON. */
export async function getJson(path, parameters, signal) {
  return (await request(path, parameters, { signal })).json();
}

/** Send JSON; return values of JSON. */
export async function post(path, body, parameters, signal) {
  const headers = { "Content-Type": "application/json" };
  return (await request(path, parameters, { method: "POST", headers, body, signal })).json();
}

/** Yield the JSON lines of a response as they arrive; leaving the loop ends the request. */
export async function* stream(path, parameters, signal) {
  const { body } = await request(path, parameters, { signal });
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const part = JSON.parse(line);
        if (part.error && part.type && !("row" in part)) throw new Error(part.error);
        yield part;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it was aborted
  }
}

const TYPES = {
  u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, i8: BigInt64Array, f4: Float32Array,
  f8: Float64Array,
};

/** Return values of JSON, with its arrays as typed arrays. */
export async function getArrays(path, parameters, signal) {
  const found = await getJson(path, parameters, signal);
  for (const [name, value] of Object.entries(found)) {
    if (value?.base64 === undefined) continue;
    const bytes = Uint8Array.fromBase64?.(value.base64)
      ?? Uint8Array.from(atob(value.base64), (each) => each.charCodeAt(0));
    found[name] = new TYPES[value.dtype](bytes.buffer);
  }
  return found;
}
