// Colours of scores, as in figures and reports: viridis from 0 up, or blue (helps) to red (hinders) around 0.

/** A palette of the page's theme, from low to high. */
const palette = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim().split(" ");

const parse = (hex) => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));

/** The colour at `share` (0 to 1) of a palette. */
function at(colours, share) {
  const place = Math.min(1, Math.max(0, share)) * (colours.length - 1);
  const low = Math.min(colours.length - 2, Math.floor(place));
  const [a, b] = [parse(colours[low]), parse(colours[low + 1])];
  return `rgb(${a.map((part, i) => Math.round(part + (b[i] - part) * (place - low))).join(",")})`;
}

/** From a map of scores `[L][H]` to a colour for each; large outliers share the colour at the end of the scale. */
export function scaleOf(map) {
  const numbers = map.values.flat().filter((value) => value !== null);
  const sizes = numbers.map(Math.abs).sort((a, b) => a - b);
  const most = sizes.length ? sizes[Math.min(sizes.length - 1, Math.floor(sizes.length * 0.995))] || sizes.at(-1) : 1;
  const signed = numbers.some((value) => value < 0);
  const limit = most || 1;
  const colours = palette(signed ? "RdBu" : "viridis");
  const share = signed ? (value) => (value / limit + 1) / 2 : (value) => value / limit;
  return { colour: (value) => at(colours, share(value)), low: signed ? -limit : 0, high: limit, saturates: sizes.at(-1) > limit, ramp: (s) => at(colours, s) };
}
