// Numbers as people read them. Missing ones are a dash.

export const NONE = "–";

export function count(value) {
  return value === null || value === undefined ? NONE : Math.round(value).toLocaleString("en-US");
}

export function duration(ms) {
  if (ms === null || ms === undefined) return NONE;
  const size = Math.abs(ms);
  if (size < 1) return "0 ms";
  if (size < 1000) return `${Math.round(ms)} ms`;
  if (size < 10_000) return `${(ms / 1000).toFixed(2)} s`;
  if (size < 100_000) return `${(ms / 1000).toFixed(1)} s`;
  if (size < 600_000) return `${Math.round(ms / 1000)} s`;
  if (size < 7_200_000) return `${Math.round(ms / 60_000)} min`;
  return `${(ms / 3_600_000).toFixed(1)} h`;
}

export function ago(ms) {
  if (ms < 1000) return "now";
  if (ms < 90_000) return `${Math.round(ms / 1000)} s ago`;
  return ms < 7_200_000 ? `${Math.round(ms / 60_000)} min ago` : `${Math.round(ms / 3_600_000)} h ago`;
}

export function rate(value) {
  if (value === null || value === undefined) return NONE;
  if (value >= 100) return count(value);
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function percent(share, digits = 0) {
  return share === null || share === undefined ? NONE : `${(share * 100).toFixed(digits)} %`;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function score(value) {
  if (value === null || value === undefined) return NONE;
  return Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3);
}
