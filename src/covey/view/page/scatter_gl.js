// Drawing of points with WebGL2: one buffer, colours and shapes from the position of the class.
//
// Colours have equal lightness (OKLCH), so that all have the same contrast; up to FEW_CLASSES hues are
// at equal distances, more are at multiples of the golden ratio. Four shapes repeat over the classes.

export const FEW_CLASSES = 12;
export const SHAPES = ["●", "■", "▲", "◆"];
const NO_CLASS = 0xffffffff;
const POLL_MS = 4;
const GOLDEN = 2654435769; // 2 ** 32 / golden ratio
const ORDER = ["class", "listed", "selected", "neighbours", "query"]; // of marks, the last on top
const MAX_STEP = 16; // the stride of an attribute is at most 255 bytes

const VERTEX = `#version 300 es
precision highp float;
precision highp int;
in float x;
in float y;
in highp uint position;
uniform vec2 centre;
uniform vec2 scale;
uniform float size;
uniform uint classes;
uniform float lightness;
uniform float chroma;
flat out vec3 colour;
flat out uint shape;

vec3 oklch(float l, float c, float turn) {
  float a = c * cos(turn * 6.2831853);
  float b = c * sin(turn * 6.2831853);
  vec3 lms = vec3(l + 0.3963377774 * a + 0.2158037573 * b, l - 0.1055613458 * a - 0.0638541728 * b,
    l - 0.0894841775 * a - 1.2914855480 * b);
  lms = lms * lms * lms;
  vec3 rgb = mat3(4.0767416621, -1.2684380046, -0.0041960863, -3.3077115913, 2.6097574011, -0.7034186147,
    0.2309699292, -0.3413193965, 1.7076147010) * lms;
  rgb = clamp(rgb, 0.0, 1.0);
  return mix(12.92 * rgb, 1.055 * pow(rgb, vec3(1.0 / 2.4)) - 0.055, step(0.0031308, rgb));
}

void main() {
  gl_Position = vec4((vec2(x, y) - centre) * scale, 0.0, 1.0);
  gl_PointSize = size;
  bool isNone = position == ${NO_CLASS}u;
  float turn = classes <= ${FEW_CLASSES}u ? float(position) / float(max(classes, 1u))
    : float((position * ${GOLDEN}u) >> 8) / 16777216.0;
  colour = oklch(lightness, isNone ? 0.02 : chroma, isNone ? 0.7 : turn);
  shape = isNone ? 0u : position % 4u;
}`;

const FRAGMENT = `#version 300 es
precision highp float;
precision highp int;
flat in vec3 colour;
flat in uint shape;
uniform float size;
uniform float alpha;
uniform vec4 ring; // colour, and the share of the radius; 0: no ring
out vec4 pixel;

void main() {
  vec2 p = 2.0 * gl_PointCoord - 1.0;
  float d = length(p);
  if (size >= 6.0 && shape == 1u) d = max(abs(p.x), abs(p.y)) * 1.15;
  if (size >= 6.0 && shape == 2u) d = max(p.y * 1.15, 0.58 + abs(p.x) * 0.95 - p.y * 0.55 - 0.16);
  if (size >= 6.0 && shape == 3u) d = abs(p.x) + abs(p.y);
  float soft = 2.0 / size;
  float cover = 1.0 - smoothstep(1.0 - soft, 1.0, d);
  if (size < 3.0) cover = 1.0;
  if (cover <= 0.0) discard;
  float isRing = ring.a > 0.0 ? smoothstep(1.0 - ring.a - soft, 1.0 - ring.a, d) : 0.0;
  vec3 rgb = mix(colour, ring.rgb, isRing);
  pixel = vec4(rgb, 1.0) * cover * alpha;
}`;

/** Return the CSS colour of a class; `lightness` as for the points. */
export function classColour(position, classes, { lightness, chroma }) {
  const turn = classes <= FEW_CLASSES ? position / Math.max(classes, 1) : (Math.imul(position, GOLDEN) >>> 8) / 2 ** 24;
  return `oklch(${lightness * 100}% ${chroma} ${(turn * 360).toFixed(1)})`;
}

/** Return a CSS colour `#rrggbb` as three numbers from 0 to 1. */
function parseColour(text) {
  const number = Number.parseInt(text.slice(1), 16);
  return [(number >> 16) / 255, ((number >> 8) & 255) / 255, (number & 255) / 255];
}

/**
 * Draws points on a canvas.
 *
 * Args: `points` ({x, y, position, classes}). Throws an error if there is no WebGL2.
 */
export class PointRenderer {
  constructor(canvas, points) {
    this.canvas = canvas;
    this.points = points;
    this.marks = new Map(); // name -> {indices, ...}: points that are drawn again, on top
    this.gl = canvas.getContext("webgl2", { antialias: false, alpha: true, powerPreference: "high-performance" });
    if (!this.gl) throw new Error("The browser has no WebGL2");
    this.start();
  }

  /** Create the program and the buffers; again after the context was lost. */
  start() {
    const { gl } = this;
    const program = gl.createProgram();
    for (const [type, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(type);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    ["x", "y", "position"].forEach((name, at) => gl.bindAttribLocation(program, at, name));
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS) && !gl.isContextLost()) {
      throw new Error(`The point cloud cannot be drawn: ${gl.getProgramInfoLog(program)}`);
    }
    gl.useProgram(program);
    this.uniforms = {};
    for (const name of ["centre", "scale", "size", "classes", "lightness", "chroma", "alpha", "ring"]) {
      this.uniforms[name] = gl.getUniformLocation(program, name);
    }
    const { x, y, position } = this.points;
    gl.bindBuffer(gl.ARRAY_BUFFER, gl.createBuffer());
    gl.bufferData(gl.ARRAY_BUFFER, 12 * x.length, gl.STATIC_DRAW);
    [x, y, position].forEach((values, at) => gl.bufferSubData(gl.ARRAY_BUFFER, 4 * x.length * at, values));
    for (let at = 0; at < 3; at += 1) gl.enableVertexAttribArray(at);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    for (const mark of this.marks.values()) mark.buffer = null;
  }

  /**
   * Mark points; `name` is one of ORDER.
   *
   * Options: `indices`, `ring` (a token of style.css), `width` (of the ring), `grow` (factor of the size
   * of a point), `least` (its least size in pixels).
   */
  mark(name, options) {
    const before = this.marks.get(name);
    if (before?.buffer) this.gl.deleteBuffer(before.buffer);
    if (options?.indices.length) this.marks.set(name, { ...options, buffer: null });
    else this.marks.delete(name);
  }

  /**
   * Draw.
   *
   * Args: `view` ({x, y, zoom}: centre and pixels per unit), `style` ({size, alpha, lightness, chroma, tokens}),
   * `step` (every step-th point is drawn).
   */
  draw(view, style, step = 1) {
    const { gl, canvas, uniforms, points } = this;
    if (gl.isContextLost()) return;
    gl.viewport(0, 0, canvas.width, canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform2f(uniforms.centre, view.x, view.y);
    gl.uniform2f(uniforms.scale, (2 * view.zoom) / canvas.width, (2 * view.zoom) / canvas.height);
    gl.uniform1ui(uniforms.classes, points.classes);
    gl.uniform1f(uniforms.lightness, style.lightness);
    gl.uniform1f(uniforms.chroma, style.chroma);
    gl.uniform4f(uniforms.ring, 0, 0, 0, 0);
    gl.uniform1f(uniforms.size, style.size);
    gl.uniform1f(uniforms.alpha, style.alpha);
    this.setStep(Math.min(step, MAX_STEP));
    gl.drawArrays(gl.POINTS, 0, Math.ceil(points.x.length / Math.min(step, MAX_STEP)));
    this.setStep(1);
    for (const name of ORDER) if (this.marks.has(name)) this.drawMark(this.marks.get(name), style);
  }

  setStep(step) {
    const { gl } = this;
    const bytes = 4 * this.points.x.length;
    gl.vertexAttribPointer(0, 1, gl.FLOAT, false, 4 * step, 0);
    gl.vertexAttribPointer(1, 1, gl.FLOAT, false, 4 * step, bytes);
    gl.vertexAttribIPointer(2, 1, gl.UNSIGNED_INT, 4 * step, 2 * bytes);
  }

  drawMark(mark, style) {
    const { gl, uniforms } = this;
    if (!mark.buffer) {
      mark.buffer = gl.createBuffer();
      gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, mark.buffer);
      gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, mark.indices, gl.STATIC_DRAW);
    }
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, mark.buffer);
    const size = Math.max(style.size * (mark.grow ?? 1), (mark.least ?? 0) * style.ratio);
    gl.uniform1f(uniforms.size, size);
    gl.uniform1f(uniforms.alpha, mark.alpha ?? 1);
    const width = mark.ring ? Math.min(0.5, ((mark.width ?? 1.5) * 2 * style.ratio) / size) : 0;
    gl.uniform4f(uniforms.ring, ...parseColour(style.tokens[mark.ring] ?? "#000000"), width);
    gl.drawElements(gl.POINTS, mark.indices.length, gl.UNSIGNED_INT, 0);
  }

  /** Wait until everything is drawn, without a stall of the page; return false if the context is lost. */
  async finish() {
    const { gl } = this;
    const fence = gl.fenceSync(gl.SYNC_GPU_COMMANDS_COMPLETE, 0);
    gl.flush();
    while (fence && !gl.isContextLost() && gl.getSyncParameter(fence, gl.SYNC_STATUS) !== gl.SIGNALED) {
      await new Promise((resolve) => {
        setTimeout(resolve, POLL_MS);
      });
    }
    gl.deleteSync(fence);
    return !gl.isContextLost();
  }

  /** Return RGBA of all pixels that were drawn, the bottom row first. */
  async readPixels() {
    const { gl, canvas } = this;
    const pixels = new Uint8Array(4 * canvas.width * canvas.height);
    const buffer = gl.createBuffer();
    gl.bindBuffer(gl.PIXEL_PACK_BUFFER, buffer);
    gl.bufferData(gl.PIXEL_PACK_BUFFER, pixels.length, gl.STREAM_READ);
    gl.readPixels(0, 0, canvas.width, canvas.height, gl.RGBA, gl.UNSIGNED_BYTE, 0);
    gl.bindBuffer(gl.PIXEL_PACK_BUFFER, null);
    await this.finish();
    gl.bindBuffer(gl.PIXEL_PACK_BUFFER, buffer);
    gl.getBufferSubData(gl.PIXEL_PACK_BUFFER, 0, pixels);
    gl.bindBuffer(gl.PIXEL_PACK_BUFFER, null);
    gl.deleteBuffer(buffer);
    return pixels;
  }

  /** Release the memory of the GPU. */
  close() {
    this.gl.getExtension("WEBGL_lose_context")?.loseContext();
  }
}
