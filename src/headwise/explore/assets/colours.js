// Colours of scores: viridis from 0 up, or green (helps) to purple (hinders) around 0.

const VIRIDIS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];
const SIGNED = { light: ["#5e1a73", "#9970ab", "#d8c4e0", "#eceff2", "#b7dfb5", "#4aa35f", "#07581f"], dark: ["#d9a6ec", "#9a66b0", "#54405f", "#2b313a", "#2f5a3c", "#3f9b58", "#8fe3a4"] };

const parse = (hex) => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));

/** The colour at `share` (0 to 1) of a palette. */
function at(palette, share) {
  const place = Math.min(1, Math.max(0, share)) * (palette.length - 1);
  const low = Math.min(palette.length - 2, Math.floor(place));
  const [a, b] = [parse(palette[low]), parse(palette[low + 1])];
  return `rgb(${a.map((part, i) => Math.round(part + (b[i] - part) * (place - low))).join(",")})`;
}

/** From a map of scores `[L][H]` to a colour for each; large outliers share the colour at the end of the scale. */
export function scaleOf(map, dark) {
  const numbers = map.values.flat().filter((value) => value !== null);
  const sizes = numbers.map(Math.abs).sort((a, b) => a - b);
  const most = sizes.length ? sizes[Math.min(sizes.length - 1, Math.floor(sizes.length * 0.995))] || sizes.at(-1) : 1;
  const signed = numbers.some((value) => value < 0);
  const limit = most || 1;
  const palette = signed ? SIGNED[dark ? "dark" : "light"] : VIRIDIS;
  const share = signed ? (value) => (value / limit + 1) / 2 : (value) => value / limit;
  return { colour: (value) => at(palette, share(value)), low: signed ? -limit : 0, high: limit, saturates: sizes.at(-1) > limit, ramp: (s) => at(palette, s) };
}
