/**
 * One model on its way: a GGUF cut into shards, described by a manifest, from any source.
 *
 * Shards come several at a time and go into the Cache API once their SHA-256 is right. Only a
 * window of shards, from the one being read onwards, stays in memory: the engine reads in order.
 * Reading takes a shard from the window, the cache or the source, whatever has it right.
 */

import { keptHeaders } from "./kept.mjs";
import { isManifest, parseManifest } from "./manifest.mjs";
import { Meter } from "./meter.mjs";
import { Readers } from "./readers.mjs";
import { Shelf } from "./shelf.mjs";
import { checkRoom } from "./storage.mjs";
import { ShardError, matches, release } from "./transfer.mjs";
import { Transfers } from "./transfers.mjs";
import { LEFT, Turn } from "./turn.mjs";
import { WholeFile } from "./whole.mjs";

const WINDOW = 4; // the shard being read and those after it, hashed meanwhile

/**
 * @typedef {import("./sources.mjs").Source} Source
 * @typedef {import("./transfers.mjs").Retry} Retry
 * @typedef {import("./meter.mjs").OnProgress} OnProgress
 */

/** One model being fetched. */
export class Download {
  failed = false;
  replaced = false;
  /** @type {Promise<string>} */
  manifestText;
  #source;
  #transfers;
  #turn;
  #shelf;
  /** @type {import("./manifest.mjs").Shard[]} */
  #shards = [];
  #meter = new Meter();
  /** Shards that lie in the cache. @type {Set<number>} */
  #stored = new Set();
  /** In flight, or held for reading. @type {Map<number, Promise<Uint8Array>>} */
  #jobs = new Map();
  #readers = new Readers();
  #running = 0;
  /** The latest wish to go on, if it was not paused since. @type {object | null} */
  #resuming = null;
  #first = 0; // of the window
  /** Where the whole file's hash is still to be checked. @type {WholeFile | null} */
  #whole = null;
  /** Whether what is kept has been found to have it. */
  #isVerified = false;

  /**
   * @param {Source} source
   * @param {Retry} retry
   */
  constructor(source, retry) {
    this.#source = source;
    this.#transfers = new Transfers(retry);
    this.#turn = new Turn(source.manifestUrl);
    this.#shelf = new Shelf(source.manifestUrl);
    this.manifestText = this.#open();
    this.manifestText.catch(() => {
      this.failed = true;
      this.#turn.leave();
    });
  }

  /**
   * Whether this is the download of what `source` names, and no useless one.
   *
   * @param {Source} source
   */
  continues({ manifestUrl, manifestSha256, keep }) {
    const mine = this.#source;
    const isSame = manifestUrl === mine.manifestUrl && manifestSha256 === mine.manifestSha256;
    return !this.failed && isSame && keep === mine.keep;
  }

  /** Whether there is still something to fetch. */
  get isUnderWay() {
    return !this.failed && (!this.#shards.length || this.#meter.loaded < this.#meter.total);
  }

  get isPaused() {
    return this.#transfers.isPaused;
  }

  /** Whether the browser keeps all of it, and if it refused more, how many bytes it keeps. */
  get kept() {
    const bytes = [...this.#stored].reduce((sum, i) => sum + this.#shards[i].size, 0);
    return { isWhole: this.#isWhole, isFull: this.#shelf.isFull, bytes, all: this.#meter.total };
  }

  /** @param {string} manifestUrl */
  isOf(manifestUrl) {
    return manifestUrl === this.#source.manifestUrl;
  }

  /** Ends the transfers until `resume`; what has come of them is kept where ranges can be had.
   * Another tab that waits for the model goes on fetching it. */
  pause() {
    this.#resuming = null;
    this.#transfers.pause();
    this.#turn.leave();
  }

  /** Lets it go on, as soon as no other tab fetches the same. */
  resume() {
    const mine = (this.#resuming = {});
    const goOn = () => this.#resuming === mine && this.#transfers.resume();
    this.#takeTurn(() => this.#findStored()).then(goOn, () => {});
  }

  /** @param {OnProgress} listener */
  listen(listener) {
    this.#meter.listen(listener);
  }

  cancel() {
    this.failed = true;
    this.#meter.listen(null);
    this.#transfers.cancel(cancelled());
    this.#turn.leave();
    this.#jobs.clear();
    this.#readers.close();
    this.#whole?.close();
  }

  /**
   * @param {number} i
   * @returns {Promise<Uint8Array>}
   */
  async read(i) {
    await this.manifestText;
    this.#transfers.signal.throwIfAborted();
    if (!this.#shards[i]) throw new ShardError("request.invalid", `There is no shard ${i}.`);
    this.#moveWindow(i);
    try {
      let bytes = await this.#job(i);
      if (!bytes.length) bytes = await this.#again(i);
      await this.#checkWhole(i, bytes);
      const isLast = i === this.#shards.length - 1;
      if (isLast && this.#stored.has(i)) this.#moveWindow(i + 1); // nothing is held afterwards
      if (isLast) this.#readers.close();
      return bytes;
    } catch (error) {
      this.#jobs.delete(i); // so that a later read tries again
      if (!this.#transfers.signal.aborted && (await this.#isReplaced())) {
        this.replaced = this.failed = true;
      }
      throw error;
    }
  }

  /**
   * Shard `i` once more: who had it last has freed its memory.
   *
   * @param {number} i
   */
  #again(i) {
    this.#jobs.delete(i);
    return this.#job(i);
  }

  /**
   * Has the shard hashed with those before it; with the last one, ShardError if the file is not
   * the one that it should be, of which nothing is kept then.
   *
   * @param {number} i
   * @param {Uint8Array} bytes
   */
  async #checkWhole(i, bytes) {
    const sha256 = await this.#whole?.take(i, bytes);
    if (!sha256) return;
    this.#whole = null;
    if (sha256 === this.#source.sha256) {
      await this.#shelf.putManifest(await this.manifestText, sha256);
      return;
    }
    await this.#shelf.delete(this.#shards.map(({ name }) => name));
    await this.#shelf.deleteManifest();
    this.failed = true;
    throw new ShardError(
      "shard.hash",
      `The file has the SHA-256 ${sha256}, not ${this.#source.sha256}.`,
      "The server has another file than the catalogue names, or a damaged one.",
    );
  }

  /**
   * True if the source is described in another way by now; what was kept of it is not any longer.
   * A manifest that the catalogue knows by its hash is never in doubt.
   */
  async #isReplaced() {
    if (this.#source.manifestSha256) return false;
    try {
      const text = new TextDecoder().decode(await this.#source.describe(this.#transfers.signal));
      if (text === (await this.manifestText)) return false;
      await this.#shelf.deleteManifest();
      return true;
    } catch {
      return false; // offline, for example: what went wrong before is worth more
    }
  }

  /** @param {number} first */
  #moveWindow(first) {
    this.#first = first;
    for (const i of this.#jobs.keys()) {
      if (i < first || (this.#stored.has(i) && !this.#inWindow(i))) this.#jobs.delete(i);
    }
    this.#pump();
  }

  /** @param {number} i */
  #inWindow(i) {
    return i >= this.#first && i < this.#windowEnd();
  }

  /** Without a cache, what is fetched ahead must be held: as much as is fetched at once. */
  #windowEnd() {
    return Math.min(this.#first + (this.#shelf.keeps ? WINDOW : this.#source.parallel), this.#shards.length);
  }

  async #open() {
    await this.#shelf.open(this.#source.keep);
    /** @type {string | null} */
    let text = null;
    const look = async () => {
      text = await this.#keptManifest();
      if (text !== null) await this.#use(text);
    };
    await look();
    await this.#takeTurn(look).catch(async (error) => {
      if (error !== LEFT) throw error;
      await this.#transfers.resumed; // who lets it go on takes the turn
      this.#transfers.signal.throwIfAborted();
      await look();
    });
    if (text === null || (this.#source.mayChange && !this.#isWhole)) {
      text = await this.#fetchManifest();
      await this.#use(text);
    }
    this.#meter.report();
    if (this.#shelf.keeps) await checkRoom(this.#meter.total - this.#meter.loaded);
    this.#pump();
    return text;
  }

  /**
   * Until no other tab fetches and keeps the same; then `look` has seen what that one has kept.
   *
   * @param {() => Promise<void>} look
   */
  async #takeTurn(look) {
    if (!this.#shelf.keeps || this.#isWhole) return;
    await this.#turn.take(this.#transfers.signal, async () => {
      await look();
      this.#meter.report();
    });
    this.#transfers.signal.throwIfAborted();
    await look();
    this.#endTurn();
  }

  /** Where there is nothing left to be fetched and kept, another tab may have its turn. */
  #endTurn() {
    if (!this.#shelf.keeps || this.#isWhole) this.#turn.end();
  }

  get #isWhole() {
    return this.#shards.length > 0 && this.#stored.size === this.#shards.length;
  }

  /** @param {string} text of the manifest */
  async #use(text) {
    this.#shards = parseManifest(text, this.#source.mayLackHashes).shards;
    await this.#findStored();
    const isChecked = !this.#source.sha256 || this.#isVerified;
    this.#whole = isChecked ? null : new WholeFile(this.#shards.length);
  }

  async #keptManifest() {
    const kept = await this.#shelf.manifest(this.#source.manifestSha256);
    if (!kept || !isManifest(kept.text, this.#source.mayLackHashes)) return null;
    this.#isVerified = kept.verified === this.#source.sha256;
    return kept.text;
  }

  async #fetchManifest() {
    this.#isVerified = false;
    const bytes = await this.#transfers.run((signal) => this.#source.describe(signal));
    if (!(await matches(bytes, this.#source.manifestSha256))) {
      throw new ShardError(
        "manifest.invalid",
        "The model manifest is not the one this page expects.",
        "Reload the page: the site may have been updated.",
      );
    }
    const text = new TextDecoder().decode(bytes);
    parseManifest(text, this.#source.mayLackHashes);
    await this.#shelf.putManifest(text, "");
    return text;
  }

  async #findStored() {
    const found = await this.#shelf.has(this.#shards.map(({ name }) => name));
    this.#stored = new Set([...this.#shards.keys()].filter((i) => found[i]));
    this.#meter.begin(this.#shards.map(({ size }) => size), found);
  }

  /** Starts jobs up to the limit: first the window, then what is missing. */
  #pump() {
    while (this.#running < this.#source.parallel && !this.#transfers.signal.aborted) {
      const i = this.#nextShard();
      if (i < 0) return;
      this.#job(i).catch(() => {}); // a failed job stays in the map for its reader
    }
  }

  #nextShard() {
    for (let i = this.#first; i < this.#windowEnd(); i++) {
      if (!this.#jobs.has(i)) return i;
    }
    if (!this.#shelf.keeps) return -1; // nowhere to put more
    return this.#shards.findIndex((_, i) => !this.#stored.has(i) && !this.#jobs.has(i));
  }

  /**
   * @param {number} i
   * @returns {Promise<Uint8Array>}
   */
  #job(i) {
    const known = this.#jobs.get(i);
    if (known) return known;
    this.#running++;
    const job = this.#load(i).finally(() => {
      this.#running--;
      this.#endTurn();
      if (this.#stored.has(i) && !this.#inWindow(i)) this.#drop(i);
      this.#pump();
    });
    this.#jobs.set(i, job);
    return job;
  }

  /**
   * A shard that is kept need not be held; of one that comes later, nobody has the bytes.
   *
   * @param {number} i
   */
  #drop(i) {
    if (i >= this.#windowEnd()) this.#jobs.get(i)?.then(release, () => {});
    this.#jobs.delete(i);
  }

  /** @param {number} i */
  async #load(i) {
    const bytes = (await this.#loadCached(i)) ?? (await this.#loadRemote(i));
    this.#transfers.signal.throwIfAborted();
    return bytes;
  }

  /** @param {number} i */
  async #loadCached(i) {
    if (!this.#stored.has(i)) return null;
    const { name } = this.#shards[i];
    try {
      const wanted = { url: this.#shelf.url(name), ...identityOf(this.#shards[i]) };
      const bytes = await this.#readers.read(wanted);
      if (bytes) return bytes;
      await this.#shelf.delete([name]);
    } catch {
      // an unreadable cache entry is as good as none
    }
    this.#stored.delete(i);
    this.#meter.count(i, 0);
    return null;
  }

  /** @param {number} i */
  async #loadRemote(i) {
    const shard = this.#shards[i];
    for (let attempt = 0; attempt < 2; attempt++) {
      const bytes = await this.#fetchShard(i);
      if (await matches(bytes, shard.sha256)) {
        const headers = keptHeaders(identityOf(shard), bytes);
        if (await this.#shelf.put(shard.name, bytes, headers)) this.#stored.add(i);
        return bytes;
      }
      this.#meter.count(i, 0);
    }
    throw this.#wrongShard(i);
  }

  /** @param {number} i */
  #wrongShard(i) {
    return new ShardError(
      "shard.hash",
      `Part ${i} of the model (${this.#shards[i].name}) does not match its hash.`,
      "The file on the server is damaged, or something on the way changed it.",
    );
  }

  /**
   * The bytes of shard `i` from its source, unverified. An interrupted transfer goes on where it
   * ended if the source can do that.
   *
   * @param {number} i
   */
  #fetchShard(i) {
    const shard = this.#shards[i];
    const bytes = new Uint8Array(shard.size);
    let filled = 0;
    return this.#transfers.run(
      async (signal, alive) => {
        const transfer = await this.#source.begin(shard, filled, signal);
        filled = transfer.from;
        for await (const part of transfer.parts) {
          alive();
          if (filled + part.length > bytes.length) throw this.#wrongShard(i);
          bytes.set(part, filled);
          filled += part.length;
          this.#meter.count(i, filled);
        }
        if (filled < bytes.length) throw new TypeError(`ended after ${filled} bytes`);
        return bytes;
      },
      () => filled,
    );
  }
}

/**
 * @param {import("./manifest.mjs").Shard} shard
 * @returns {{sha256: string | null, version: string}}
 */
function identityOf({ sha256, version = "" }) {
  return { sha256, version };
}

export function cancelled() {
  return new ShardError("request.cancelled", "The download was stopped.");
}
