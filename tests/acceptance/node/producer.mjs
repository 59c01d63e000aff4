// A producer written from docs/protocol.md alone: a Redis client, msgpack, and that page's text of admit.lua.
import { createHash, randomBytes } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { decode, encode } from "@msgpack/msgpack";
import { createClient, ErrorReply, RESP_TYPES } from "@redis/client";

const DEFAULT_TTL_MS = 60_000;
const INBOX_BLOCK_S = "1";
const INBOX_READ = 512;
const MAX_CALL = 256;

/** One request ended without outputs; `code`, `retryable` and, for queue_full, `retryAfterMs` as the page has them. */
export class RequestFailed extends Error {
  constructor(code, message, { retryable = false, retryAfterMs = 0 } = {}) {
    super(`${code}: ${message}`);
    Object.assign(this, { code, retryable, retryAfterMs });
  }
}

/** Sends requests to one queue and hands each its result, through an inbox of its own. */
export class Producer {
  #calls = 0;
  #waiting = new Map();
  #reading = null;
  #closed = false;

  /** Connects; `page` is the text of docs/protocol.md. */
  static async connect(url, queue, page) {
    const producer = new Producer();
    producer.admitText = /^```lua\n(-- admit: [^]*?)^```$/m.exec(page)[1];
    producer.admitSha = createHash("sha1").update(producer.admitText).digest("hex");
    producer.base = `clipfleet:{${queue}}:`;
    producer.commands = await open(url);
    producer.inboxReads = await open(url); // a blocking read wants a connection of its own
    const user = await producer.commands.sendCommand(["ACL", "WHOAMI"]);
    producer.name = `${user}.${randomBytes(16).toString("base64url")}`;
    producer.inbox = `${producer.base}inbox:${producer.name}`;
    return producer;
  }

  /**
   * Admits requests `{pipeline, inputs, options?, ttlMs?, ownKey?, id?}` in order.
   * Returns `{id, answer}` for each; `answer` is a promise of the result map, or fails with RequestFailed.
   */
  async submit(requests, { lane = "interactive" } = {}) {
    const jobs = requests.map((request) => this.#prepare(request));
    for (let start = 0; start < jobs.length; start += MAX_CALL) {
      await this.#admit(lane, jobs.slice(start, start + MAX_CALL));
    }
    return jobs.map(({ id, answer }) => ({ id, answer }));
  }

  /** One request, its result; sent again after the time that the queue names while the queue is full. */
  async call(request, options) {
    for (;;) {
      const [job] = await this.submit([request], options);
      try {
        return await job.answer;
      } catch (error) {
        if (error.code !== "queue_full") throw error;
        await pause(error.retryAfterMs * (1 + Math.random() / 4));
      }
    }
  }

  /** The request is not wanted any more; its answer will be `cancelled`, unless it is under way already. */
  async cancel(id, ttlMs = DEFAULT_TTL_MS) {
    await this.commands.sendCommand(["SET", `${this.base}cancel:${id}`, "1", "PX", String(ttlMs)]);
  }

  /** The result under a request's own key, for whoever knows its id; null when there is none after `seconds`. */
  async peek(id, seconds) {
    const key = `${this.base}result:${id}`;
    const data = await this.commands.sendCommand(["BLMOVE", key, key, "LEFT", "LEFT", String(seconds)]);
    return data === null ? null : decode(data);
  }

  async close() {
    this.#closed = true;
    await this.#reading;
    for (const id of [...this.#waiting.keys()]) this.#fail(id, new RequestFailed("unavailable", "closed"));
    this.commands.destroy();
    this.inboxReads.destroy();
  }

  #prepare({ pipeline, inputs, options, ttlMs = DEFAULT_TTL_MS, ownKey = false, id }) {
    id ??= randomBytes(16).toString("base64url");
    const message = { v: 1, id, pipeline, inputs, ...(options && { options }), ...(!ownKey && { reply_to: this.inbox }) };
    const job = { id, ttlMs, m: Buffer.from(encode(message)) };
    // Waited for before it is admitted: a fast worker answers while the reply to our call is on its way.
    job.answer = ownKey ? null : new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.#fail(id, new RequestFailed("expired", "no answer in time")), ttlMs);
      this.#waiting.set(id, { resolve, reject, timer });
    });
    job.answer?.catch(() => {}); // whoever awaits it gets the failure; nobody awaiting it is no crash
    return job;
  }

  async #admit(lane, jobs) {
    const keys = ["interactive", "bulk", "fleet", "bytes", `call:${this.name}.${++this.#calls}`].map((key) => this.base + key);
    const args = [...keys, lane, ...jobs.flatMap(({ id, ttlMs, m }) => [id, String(ttlMs), m])];
    const deadline = Date.now() + Math.max(...jobs.map(({ ttlMs }) => ttlMs));
    if (this.#reading === null && this.#waiting.size > 0) this.#reading = this.#loop();
    const [, retryAfterMs, , answers] = await this.#evaluate(args, deadline);
    jobs.forEach(({ id }, index) => {
      const answer = String(answers[index]);
      if (/^\d+-\d+$/.test(answer)) return;
      const retryable = answer === "queue_full";
      this.#fail(id, new RequestFailed(answer, "refused at admission", { retryable, retryAfterMs: retryable ? retryAfterMs : 0 }));
    });
  }

  /** The call key makes it safe to ask again when the answer was lost: what went through is not added twice. */
  async #evaluate(args, deadline) {
    let command = ["EVALSHA", this.admitSha];
    for (;;) {
      try {
        return await this.commands.sendCommand([...command, "5", ...args]);
      } catch (error) {
        if (String(error.message).startsWith("NOSCRIPT")) command = ["EVAL", this.admitText];
        else if (error instanceof ErrorReply || Date.now() > deadline) throw error;
        else await pause(10);
      }
    }
  }

  /** The inbox loop: runs while something is waited for, and once more to cut off what came last. */
  async #loop() {
    let arrived = 0;
    while (!this.#closed && (this.#waiting.size > 0 || arrived > 0)) {
      try {
        // What the last round brought is here: now it may go.
        const round = [["LTRIM", this.inbox, String(arrived), "-1"]];
        if (this.#waiting.size > 0) {
          round.push(["BLMOVE", this.inbox, this.inbox, "LEFT", "LEFT", INBOX_BLOCK_S]);
          round.push(["LRANGE", this.inbox, "0", String(INBOX_READ - 1)]);
        }
        const replies = await Promise.all(round.map((command) => this.inboxReads.sendCommand(command)));
        const found = replies[2] ?? [];
        arrived = found.length;
        for (const data of found) this.#deliver(decode(data));
      } catch {
        arrived = 0; // the connection was lost: what was not cut off is read again, and dropped by its id
        await pause(10);
      }
    }
    this.#reading = null; // in the same turn as the last look at what is waited for: no request falls between
  }

  #deliver(result) {
    const wait = this.#take(result.id);
    if (wait === undefined) return; // a second copy, or one that is not waited for any more
    if (result.ok) return wait.resolve(result);
    const { code, message, retryable } = result.error;
    wait.reject(new RequestFailed(code, message, { retryable }));
  }

  #fail(id, error) {
    this.#take(id)?.reject(error);
  }

  #take(id) {
    const wait = this.#waiting.get(id);
    this.#waiting.delete(id);
    clearTimeout(wait?.timer);
    return wait;
  }
}

async function open(url) {
  const client = createClient({
    url,
    RESP: 2,
    commandOptions: { typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer } },
    socket: { reconnectStrategy: () => 10 },
  });
  client.on("error", () => {}); // commands under way fail with it, and it connects again
  return client.connect();
}
