// Requests to the server: JSON, and columns as typed arrays (the format is in messages.py).

/** An error that the server reports. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** Return the URL of a request; parameters that are null or undefined are omitted. */
export function url(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value === null || value === undefined) continue;
    query.set(name, Array.isArray(value) ? value.join(",") : value === true ? "1" : value === false ? "0" : value);
  }
  const text = query.toString();
  return `/api/${path}${text ? `?${text}` : ""}`;
}

async function request(path, parameters, options) {
  const response = await fetch(url(path, parameters), { credentials: "same-origin", ...options });
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error ?? message;
  } catch {
    // The body is not JSON.
  }
  throw new ApiError(message, response.status);
}

/** Return values of JSON. */
export async function getJson(path, parameters, signal) {
  return (await request(path, parameters, { signal })).json();
}

/** Send JSON; return the response. */
export async function post(path, body, parameters, signal) {
  const headers = { "Content-Type": "application/json" };
  return request(path, parameters, { method: "POST", headers, body, signal });
}

/** Return `{values, arrays}`: values of JSON, and typed arrays by name with their `shape`. */
export async function getColumns(path, parameters, signal) {
  return decodeColumns(await (await request(path, parameters, { signal })).arrayBuffer());
}

const TYPES = {
  u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array,
  i8: BigInt64Array, f4: Float32Array, f8: Float64Array, b1: Uint8Array,
};

/** Return the columns of a binary response. */
export function decodeColumns(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const { columns, ...values } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays = {};
  for (const [name, { dtype, shape, offset }] of Object.entries(columns)) {
    const size = shape.reduce((product, each) => product * each, 1);
    arrays[name] = new TYPES[dtype](buffer, 4 + length + offset, size);
    arrays[name].shape = shape;
  }
  return { values, arrays };
}

/** A column of strings, decoded on access. */
export class Strings {
  constructor(arrays, name) {
    this.offsets = arrays[`${name}.offsets`];
    this.data = arrays[`${name}.data`];
    this.decoder = new TextDecoder();
  }

  get length() {
    return this.offsets.length - 1;
  }

  at(index) {
    return this.decoder.decode(this.data.subarray(this.offsets[index], this.offsets[index + 1]));
  }
}
