// The OpenAPI document as a page, with a form for each operation. No library, nothing from elsewhere.

function made(tag, text = "", ...children) {
  const node = document.createElement(tag);
  node.textContent = text;
  node.append(...children);
  return node;
}

function table(heads, rows) {
  const head = made("tr", "", ...heads.map((word) => made("th", word)));
  return made("table", "", head, ...rows.map((row) => made("tr", "", ...row.map((cell) => made("td", cell)))));
}

function named(reference) {
  return reference.split("/").at(-1);
}

function kindOf(schema = {}) {
  if (schema.$ref) return named(schema.$ref);
  if (schema.anyOf) return schema.anyOf.map(kindOf).join(" or ");
  if (schema.type === "array") return `list of ${kindOf(schema.items)}`;
  const least = schema.minimum ?? schema.exclusiveMinimum;
  const most = schema.maximum ?? schema.exclusiveMaximum;
  const range = least === undefined && most === undefined ? "" : ` ${least ?? "…"} to ${most ?? "…"}`;
  const words = schema.enum ? schema.enum.join(", ") : schema.format === "binary" ? "file" : schema.type ?? "anything";
  return words + range;
}

function fieldsOf(operation) {
  const given = (operation.parameters ?? []).map((one) => ({ ...one, kind: kindOf(one.schema), schema: one.schema }));
  const form = operation.requestBody?.content["multipart/form-data"]?.schema;
  for (const [name, schema] of Object.entries(form?.properties ?? {})) {
    given.push({ name, in: "form", kind: kindOf(schema), schema, description: schema.description });
  }
  return given;
}

async function send(method, path, fields, values, output) {
  const query = new URLSearchParams();
  const body = method === "POST" ? new FormData() : undefined;
  for (const field of fields) {
    const value = field.kind === "file" ? values[field.name].files[0] : values[field.name].value;
    if (!value) continue;
    if (field.in === "path") path = path.replace(`{${field.name}}`, encodeURIComponent(value));
    else if (field.in === "form") body.append(field.name, value);
    else query.set(field.name, value);
  }
  const address = query.size ? `${path}?${query}` : path;
  output.replaceChildren(made("pre", `${method} ${address}\n…`));
  const answer = await fetch(address, { method, body });
  const kind = answer.headers.get("content-type") ?? "";
  if (kind.startsWith("image/")) {
    const picture = made("img");
    picture.alt = "the answer";
    picture.src = URL.createObjectURL(await answer.blob());
    output.replaceChildren(made("pre", `${answer.status}  ${address}`), picture);
    return;
  }
  const text = kind.includes("json") ? JSON.stringify(await answer.json(), null, 1) : await answer.text();
  output.replaceChildren(made("pre", `${answer.status}  ${address}\n${text}`));
}

function formOf(method, path, fields) {
  const output = made("div");
  const form = made("form");
  for (const field of fields) {
    const input = made("input");
    input.name = field.name;
    if (field.kind === "file") input.type = "file";
    else if (field.schema.default !== undefined) input.placeholder = String(field.schema.default);
    form.append(made("label", field.name, input));
  }
  form.append(made("button", "Send"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(method, path, fields, form.elements, output).catch((error) => output.replaceChildren(made("pre", String(error))));
  });
  return made("div", "", form, output);
}

function answersOf(operation) {
  return Object.entries(operation.responses).map(([status, answer]) => {
    const contents = Object.entries(answer.content ?? {});
    const what = contents.map(([kind, { schema }]) => (schema?.$ref ? named(schema.$ref) : kind)).join(", ");
    return [status, what, answer.description ?? ""];
  });
}

function operationOf(path, method, operation) {
  const title = made("h2", "", made("span", method.toUpperCase()), document.createTextNode(path));
  title.firstChild.className = "method";
  const details = made("details", "", made("summary", "", title, document.createTextNode(` ${operation.summary}`)));
  const fields = fieldsOf(operation);
  details.append(made("p", operation.description ?? ""));
  if (fields.length) {
    const rows = fields.map((one) => [one.name, one.in, one.kind, one.description ?? one.schema.description ?? ""]);
    details.append(table(["field", "in", "type", ""], rows));
  }
  details.append(table(["status", "answer", ""], answersOf(operation)));
  details.append(formOf(method.toUpperCase(), path, fields));
  return details;
}

function modelOf(name, schema) {
  const rows = Object.entries(schema.properties ?? {}).map(([key, one]) => [key, kindOf(one), one.description ?? ""]);
  return made("details", "", made("summary", "", made("h2", name)), table(["field", "type", ""], rows));
}

const document_ = await (await fetch("/openapi.json")).json();
window.document.getElementById("about").textContent = `${document_.info.description ?? ""} Version ${document_.info.version}.`;
const place = window.document.getElementById("operations");
for (const [path, methods] of Object.entries(document_.paths)) {
  for (const [method, operation] of Object.entries(methods)) place.append(operationOf(path, method, operation));
}
place.append(made("h1", "Models"));
for (const [name, schema] of Object.entries(document_.components.schemas)) place.append(modelOf(name, schema));
