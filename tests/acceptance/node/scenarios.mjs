// node scenarios.mjs NAME REDIS_URL QUEUE PAGE: plays one scenario; a JSON object a line says how it goes.
import { readFileSync } from "node:fs";
import { Producer } from "./producer.mjs";

const say = (object) => console.log(JSON.stringify(object));
const echo = (data, more = {}) => ({ pipeline: "echo", inputs: { data }, ...more });
const codeOf = (answer) => answer.then(() => "ok", (error) => error.code);

const scenarios = {
  async vector(producer) {
    const result = await producer.call({ pipeline: "embed_text", inputs: { text: "a red heart" } });
    const { dtype, shape, data } = result.outputs.vector;
    const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    const floats = Array.from({ length: shape[0] }, (_, index) => view.getFloat32(4 * index, true));
    say({ dtype, shape, bytes: data.byteLength, length: Math.hypot(...floats), model: result.model ?? "" });
  },

  async own_key(producer) {
    const [{ id }] = await producer.submit([echo("kept", { ownKey: true })]);
    const [first, second] = [await producer.peek(id, 10), await producer.peek(id, 10)];
    const { outputs } = await producer.call(echo("by inbox"));
    say({ first: first.outputs.data, second: second.outputs.data, mine: first.id === id, other: outputs.data });
  },

  async partial(producer) {
    const jobs = await producer.submit([1, 2, 3, 4, 5].map((number) => echo(number)));
    const refused = await Promise.all(jobs.slice(3).map(({ answer }) => answer.catch((error) => error)));
    say({ refused: refused.map(({ code, retryable, retryAfterMs }) => ({ code, retryable, retryAfterMs })) });
    const accepted = await Promise.all(jobs.slice(0, 3).map(({ answer }) => answer));
    say({ accepted: accepted.map(({ outputs }) => outputs.data) });
  },

  async queue_full(producer) {
    const [{ answer }] = await producer.submit([echo("no room")]);
    const { code, retryable, retryAfterMs } = await answer.catch((error) => error);
    say({ code, retryable, retryAfterMs });
    const { outputs } = await producer.call(echo("room at last"));
    say({ data: outputs.data });
  },

  async error(producer) {
    const error = await producer.call({ pipeline: "nonesuch", inputs: {} }).catch((failure) => failure);
    const bad = await producer.submit([echo(1, { id: "not an id" }), echo("fine")]);
    say({ code: error.code, retryable: error.retryable, bad: await Promise.all(bad.map(({ answer }) => codeOf(answer))) });
  },

  async inbox(producer) {
    const sent = Array.from({ length: 600 }, (_, index) => new Uint8Array([index & 255, index >> 8]));
    const jobs = await producer.submit(sent.map((data) => echo(data)), { lane: "bulk" });
    const results = await Promise.all(jobs.map(({ answer }) => answer));
    const right = results.filter(({ id, outputs }, index) => id === jobs[index].id && Buffer.compare(outputs.data, sent[index]) === 0);
    say({ right: right.length, ids: new Set(results.map(({ id }) => id)).size });
  },

  async cancel(producer) {
    const jobs = await producer.submit([echo("unwanted"), echo("wanted")]);
    await producer.cancel(jobs[0].id);
    say({ cancelled: true });
    say({ codes: await Promise.all(jobs.map(({ answer }) => codeOf(answer))) });
  },

  async deadline(producer) {
    const [{ answer }] = await producer.submit([echo("nobody is there", { ttlMs: 300 })]);
    say({ code: await codeOf(answer) });
  },

  async lost(producer) {
    const results = [];
    say({ ready: true });
    for (let batch = 0; batch < 40; batch += 1) {
      const jobs = await producer.submit(Array.from({ length: 10 }, (_, index) => echo(10 * batch + index)));
      results.push(...(await Promise.all(jobs.map(({ answer }) => answer))));
    }
    say({ answered: results.length, distinct: new Set(results.map(({ outputs }) => outputs.data)).size });
  },
};

const [name, url, queue, page] = process.argv.slice(2);
const producer = await Producer.connect(url, queue, readFileSync(page, "utf8"));
await scenarios[name](producer);
await producer.close();
