// Records what is drawn on canvases, so that a panel can be written as SVG.
//
// It must be loaded before Grafana's components. Everything is drawn on the canvas as well.
const round = (value) => Math.round(value * 10) / 10;

class RecordedPath extends Path2D {
  constructor(from) {
    super(from);
    this.d = from instanceof RecordedPath ? from.d : '';
  }
  moveTo(x, y) {
    super.moveTo(x, y);
    this.d += `M${round(x)} ${round(y)}`;
  }
  lineTo(x, y) {
    super.lineTo(x, y);
    this.d += `${this.d ? 'L' : 'M'}${round(x)} ${round(y)}`; // a first line to a point only moves
  }
  rect(x, y, w, h) {
    super.rect(x, y, w, h);
    this.d += `M${round(x)} ${round(y)}h${round(w)}v${round(h)}h${round(-w)}z`;
  }
  bezierCurveTo(...p) {
    super.bezierCurveTo(...p);
    this.d += `C${p.map(round).join(' ')}`;
  }
  arc(x, y, r, ...rest) {
    super.arc(x, y, r, ...rest);
    const [px, py, pr] = [x, y, r].map(round);
    this.d += `M${px - pr} ${py}a${pr} ${pr} 0 1 0 ${2 * pr} 0a${pr} ${pr} 0 1 0 ${-2 * pr} 0`;
  }
  closePath() {
    super.closePath();
    this.d += 'z';
  }
}
window.Path2D = RecordedPath;

const escape = (text) =>
  String(text).replace(/[&<>"]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]);
const ANCHORS = { center: 'middle', right: 'end', end: 'end' };
const BASELINES = { top: 'text-before-edge', middle: 'central', bottom: 'text-after-edge' };

function matrix(context) {
  const { a, b, c, d, e, f } = context.getTransform();
  const plain = a === 1 && b === 0 && c === 0 && d === 1;
  if (plain && e === 0 && f === 0) {
    return '';
  }
  const text = plain
    ? `translate(${round(e)} ${round(f)})`
    : `matrix(${[a, b, c, d].map((v) => Math.round(v * 1e4) / 1e4).join(' ')} ${round(e)} ${round(f)})`;
  return ` transform="${text}"`;
}

class Recorder {
  constructor() {
    this.parts = [];
    this.current = new RecordedPath();
    this.clips = [[]]; // for each saved state: the paths that all limit what is drawn
  }
  element(context, kind, path) {
    const clips = this.clips.at(-1);
    const style =
      kind === 'stroke'
        ? `fill="none" stroke="${escape(context.strokeStyle)}" stroke-width="${context.lineWidth}"` +
          (context.getLineDash().length ? ` stroke-dasharray="${context.getLineDash().join(' ')}"` : '')
        : `fill="${escape(context.fillStyle)}"`;
    const faint = context.globalAlpha < 1 ? ` opacity="${context.globalAlpha}"` : '';
    if (path.d) {
      this.parts.push({ clips, text: `<path d="${path.d}" ${style}${faint}${matrix(context)}/>` });
    }
  }
  label(context, text, x, y) {
    const size = /([\d.]+)px/.exec(context.font)?.[1] ?? '12';
    const anchor = ANCHORS[context.textAlign] ?? 'start';
    const baseline = BASELINES[context.textBaseline] ?? 'auto';
    this.parts.push({
      clips: [],
      text:
        `<text x="${round(x)}" y="${round(y)}" font-size="${size}" text-anchor="${anchor}" ` +
        `dominant-baseline="${baseline}" fill="${escape(context.fillStyle)}"${matrix(context)}>` +
        `${escape(text)}</text>`,
    });
  }
}

const METHODS = {
  clearRect: (recorder) => {
    recorder.parts = [];
  },
  save: (recorder) => recorder.clips.push(recorder.clips.at(-1)),
  restore: (recorder) => recorder.clips.length > 1 && recorder.clips.pop(),
  clip: (recorder, _, path) => {
    const { d } = path instanceof RecordedPath ? path : recorder.current;
    recorder.clips.push([...recorder.clips.pop(), d]);
  },
  beginPath: (recorder) => {
    recorder.current = new RecordedPath();
  },
  moveTo: (recorder, _, ...p) => recorder.current.moveTo(...p),
  lineTo: (recorder, _, ...p) => recorder.current.lineTo(...p),
  rect: (recorder, _, ...p) => recorder.current.rect(...p),
  stroke: (recorder, context, path) => recorder.element(context, 'stroke', path ?? recorder.current),
  fill: (recorder, context, path) => recorder.element(context, 'fill', path ?? recorder.current),
  fillText: (recorder, context, text, x, y) => recorder.label(context, text, x, y),
};

const recorders = new WeakMap();
const original = HTMLCanvasElement.prototype.getContext;
HTMLCanvasElement.prototype.getContext = function getContext(kind, options) {
  const context = original.call(this, kind, kind === '2d' ? { ...options, willReadFrequently: true } : options);
  if (kind === '2d' && !recorders.has(this)) {
    const recorder = new Recorder();
    recorders.set(this, recorder);
    for (const [name, note] of Object.entries(METHODS)) {
      const draw = context[name];
      context[name] = function recorded(...p) {
        note(recorder, context, ...p);
        return draw.apply(context, p);
      };
    }
  }
  return context;
};

// What was drawn on a canvas since it was cleared: a list of {clips, text}.
window.recordedParts = (canvas) => recorders.get(canvas)?.parts ?? [];
window.escapeXml = escape;
