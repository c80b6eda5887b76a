// Answers and media: from the server, or from the bundle inside a report.

const carried = { answers: null, media: {} };

export function carry(bundle) {
  carried.answers = bundle.answers;
  carried.media = bundle.media;
}

export function isReport() {
  return carried.answers !== null;
}

export function address(path, params) {
  const pairs = Object.entries(params ?? {}).filter(
    ([, value]) => value !== undefined && value !== null && value !== "",
  );
  const query = pairs
    .map(([name, value]) => `${name}=${encodeURIComponent(value)}`)
    .sort()
    .join("&");
  return query ? `${path}?${query}` : path;
}

export async function ask(name, params) {
  const path = address(name, params);
  if (isReport()) {
    if (path in carried.answers) return carried.answers[path];
    throw new Error("this part is not in the report");
  }
  const response = await fetch(`api/${path}`, { credentials: "same-origin" });
  const answer = await response
    .json()
    .catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(answer.error ?? `the server answered ${response.status}`);
  return answer;
}

export function media(params) {
  const path = address("media", params);
  return isReport() ? (carried.media[path] ?? "") : path;
}

export function decoded(params) {
  return address("decoded", params);
}
