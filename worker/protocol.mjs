/**
 * The whole protocol between a page and the worker.
 *
 * The page sends a Request with an id of its choice, a whole number that no request under way has.
 * Replies carry the same id: zero or more `progress`, `recovery`, `delta` or `reasoning`, then exactly
 * one `result` or `error`. Messages are plain JSON values. What has no such id is answered by an error
 * with the id -1, what has that of a request under way by an error that does not end the earlier
 * one.
 *
 * The `delta`s and `reasoning`s of all answers come together in `deltas` messages, one in 16 ms at
 * most and one more at each answer's beginning and end. For each the page sends `{kind: "taken"}`,
 * which has no id and no reply; the next comes only then, with all text that there is by then (an
 * answer's end does not wait for it).
 *
 * | kind     | result value       | what it does                                              |
 * |----------|--------------------|-----------------------------------------------------------|
 * | load     | LoadResult         | fetches a model, prepares the device; ends loaded ones,   |
 * |          |                    | unless all share `memory_bytes`, once it needs memory     |
 * | generate | GenerateResult     | answers the conversation in `messages`, or goes on with   |
 * |          |                    | `prompt` as it is                                         |
 * | stop     | {stopped: boolean} | ends a running `generate` (or `load`), keeps its text     |
 * | reset    | {}                 | stops, and forgets the conversation                       |
 * | status   | Status             | says what is loaded and how much memory is used           |
 * | unload   | {}                 | stops, and frees a model, or all                          |
 * | measure  | Measurement        | measures speed; forgets the conversation                  |
 * | inspect  | Inspection         | computes a prompt, and its last token's step call by      |
 * |          |                    | call: what each call computed, and the likeliest tokens   |
 * | tokenize | {ids: number[]}    | the token ids of `text`                                   |
 * | detokenize | {text: string}   | the text of `ids`                                         |
 * | embed    | Embeddings         | vectors of the texts in `input`, by the encoder `model`   |
 * | pause    | {changed: boolean} | pauses a download under way                               |
 * | resume   | {changed: boolean} | lets it go on                                             |
 * | models   | ModelList          | says which models there are, and how much of them is kept |
 * | remove   | {bytes: number}    | deletes what the browser keeps of `model`                 |
 *
 * A model on a remote server is loaded, asked, stopped and continued in the same way. Its answers
 * have no `ids`; tokens are counted by the server or, where it does not say, by pieces of text; a
 * continuation (`continues`) sends the text so far as the assistant's last message, and goes on
 * where it ended only if the server does. `tools`, `logprobs`, `context_full` "slide", `measure` and
 * `inspect` are for models here.
 *
 * A request with a field that its kind does not have is refused by `request.invalid`; OpenAI's hints
 * mean nothing (engine/fields.py). A `load` that fails, or is stopped, before it needs memory leaves
 * everything as it was: until then options, address, manifest, header, device and limits are checked,
 * while answers go on.
 *
 * A stopped `generate` ends with its own result (`finish_reason: "cancelled"`); a stopped `load`
 * ends with the error `request.cancelled`, and so do a stopped `inspect` and `measure`.
 *
 * If the GPU is lost, a `load`, `generate`, `measure` or `inspect` goes on by itself where it stood, and says so
 * by `recovery` messages: the model is loaded anew, after pauses that grow with the losses in a row;
 * a browser that gives no GPU is asked again for a minute. After that the CPU takes its place if
 * `device` is "auto" (`device.reason` says why); else the request ends with `gpu.lost`. A `stop` ends
 * all of this at once.
 *
 * Several models can be loaded at once, by the `model` that `load` was given (the default one by
 * ""): then `memory_bytes` is the device memory of all of them, which is never exceeded. If a model
 * needs room, idle ones are swapped out, the one that was used longest ago first; if that is not
 * enough, answers under way are waited for. A model that was swapped out comes back from the
 * browser's cache when it is used. One that does not fit alone is refused by `memory.budget`. All of
 * this holds for an encoder beside them too.
 *
 * Several clients can share one worker: hub.mjs says how they come to it, router.mjs what each of
 * them has. Their messages are those above, by a port or a channel instead of the worker itself. A
 * client that goes sends `{kind: "leave"}`, without an id: what it has under way ends, each with its
 * own final reply, and then it gets `{kind: "left"}`. A `recovery` that concerns no request of a
 * client comes with the id -1.
 */

/**
 * @typedef {"auto" | "gpu" | "cpu" | "remote"} DeviceChoice
 * @typedef {"auto" | "f32" | "q16" | "q8"} Activations whether they may be rounded to integers
 *
 * @typedef {object} Message checked by engine/messages.py
 * @property {string} role "system" (or "developer"), "user", "assistant" or "tool"
 * @property {string | null} [content] needed, unless there are tool_calls
 * @property {string} [name]
 * @property {string} [reasoning_content] of an assistant message: its think part
 * @property {ToolCall[]} [tool_calls] of an assistant message
 * @property {string} [tool_call_id] of a tool message
 *
 * @typedef {object} ToolCall
 * @property {string} [id]
 * @property {string} [type] "function"
 * @property {{name: string, arguments: string | object}} function
 *
 * @typedef {object} Tool
 * @property {string} [type] "function"
 * @property {{name: string, description?: string, parameters?: object}} function
 *
 * @typedef {object} RemoteServer one that speaks OpenAI's chat completions
 * @property {string} url under which they are, such as https://example.com/v1
 * @property {string} [key] stays in memory, and goes to this server only
 * @property {string} [model] the first one that the server lists if absent
 *
 * @typedef {object} LoadRequest
 * @property {number} id
 * @property {"load"} kind
 * @property {string | File | File[]} [model] id in the catalogue, or address of a manifest, of a
 *   .gguf or of any part of a split one; or files, all parts of one model; the default model if
 *   absent
 * @property {boolean} [keep] whether the browser keeps the model; if absent, it does, but for files
 * @property {DeviceChoice} [device] "auto" if absent: a GPU, else the CPU, else `remote`, if given
 * @property {RemoteServer} [remote] what computes with the device "remote", or if it is "auto" and
 *   the model cannot be loaded on any device here
 * @property {number} [context] tokens; 2048 if absent
 * @property {Activations} [activations] "auto" if absent
 * @property {number} [kv_tokens] room that the KV cache may grow to, for all conversations together;
 *   one context if absent. If it is less, the context is that much
 * @property {number} [kv_bytes] the same in bytes; either of them
 * @property {"f16" | "q8"} [kv_precision] of what the KV cache holds: halves if absent, or bytes with
 *   scales, about half the memory
 * @property {boolean} [tune] measure the variants of kernels: all of them (true), none (false), or
 *   on a real GPU those that were not measured before (absent)
 * @property {number} [memory_bytes] on the device that all loaded models, and an encoder, may take
 *   together: those that are there stay loaded. If absent, this one takes the models' place
 *
 * @typedef {Omit<LoadRequest, "model" | "keep"> & {model?: string}} NamedLoad as the engine gets it
 *
 * @typedef {{type: "text"} | {type: "json_object"} | {type: "json_schema", json_schema:
 *   {schema: object | boolean, name?: string, strict?: boolean}}} ResponseFormat strict (if absent):
 *   no other properties than the schema has
 *
 * @typedef {object} Sampling how tokens are drawn; if absent, as the model's file
 *   recommends, else neutral: see engine/ops/choose.py
 * @property {number} [temperature] 0 (greedy) if absent
 * @property {number} [seed] 0 if absent
 * @property {number} [top_k]
 * @property {number} [top_p]
 * @property {number} [min_p]
 * @property {number} [repetition_penalty] for tokens of prompt and answer
 * @property {number} [presence_penalty] for tokens of the answer
 * @property {number} [frequency_penalty] for tokens of the answer, each time
 * @property {Record<string, number>} [logit_bias] by token id
 * @property {ResponseFormat} [response_format]
 * @property {boolean} [logprobs] whether log-probabilities are told
 * @property {number} [top_logprobs] of how many likeliest tokens, too
 *
 * @typedef {object} GenerateFields
 * @property {number} id
 * @property {"generate"} kind
 * @property {string} [model] as `load` was given it; the one loaded last if absent
 * @property {Message[]} [messages]
 * @property {boolean} [continue_final_message] the last message is the assistant's, and the beginning
 *   of the answer, which is its rest
 * @property {string | number[]} [prompt] instead of messages: a text, in which control tokens may be
 *   written out, behind the token that the model wants at the beginning; or token ids, as they are
 * @property {Tool[]} [tools] refused if the model's chat template has no place for them
 * @property {number} [continues] instead of messages: the handle of an answer that was stopped, or
 *   ended by its length, and goes on where it ended
 * @property {number} [max_tokens] up to the context if absent
 * @property {string | string[]} [stop] texts before which the answer ends
 * @property {"stop" | "slide"} [context_full] what is done then; "stop" if absent
 *
 * @typedef {GenerateFields & Sampling} GenerateRequest
 *
 * @typedef {{id: number, kind: "stop", target?: number}} StopRequest without target: whatever runs
 * @typedef {{id: number, kind: "reset" | "status"}} PlainRequest
 * @typedef {{id: number, kind: "unload", model?: string}} UnloadRequest without model: all of them
 *
 * @typedef {object} MeasureSizes in tokens
 * @property {number} prefill length of the prompt to compute
 * @property {number} context where decoding starts
 * @property {number} steps tokens to decode
 * @property {string} [model] the one loaded last if absent
 * @property {boolean} [scattered] decode with the KV blocks in random order; in their own if absent
 * @property {string} [text] to turn into tokens
 *
 * @typedef {{id: number, kind: "pause" | "resume" | "models"} | {id: number, kind: "remove",
 *   model: string}} ShardRequest `model` is that of a load, or the id of a ListedModel
 *
 * @typedef {MeasureSizes & Sampling & {id: number, kind: "measure"}} MeasureRequest
 *
 * @typedef {object} InspectRequest
 * @property {number} id
 * @property {"inspect"} kind
 * @property {string} [model] the one loaded last if absent
 * @property {Message[]} [messages] a conversation, ready for the assistant's turn
 * @property {Tool[]} [tools]
 * @property {string | number[]} [prompt] instead of messages, as in `generate`
 * @property {number} [top] how many likeliest tokens are told, 1 to 100; 10 if absent
 *
 * @typedef {{id: number, kind: "tokenize", model?: string, text: string} | {id: number,
 *   kind: "detokenize", model?: string, ids: number[]}} TokenRequest
 * @typedef {object} EmbedRequest an encoder is loaded when it is first asked, in place of another
 *   one; it waits while a model is loaded, as a load waits for the encoder's
 * @property {number} id
 * @property {"embed"} kind
 * @property {string} model address of its manifest
 * @property {string | string[]} input at most 2048 texts; of each as much is taken as fits
 * @property {"auto" | "gpu" | "cpu"} [device]
 *
 * @typedef {LoadRequest | GenerateRequest | StopRequest | PlainRequest | UnloadRequest |
 *   MeasureRequest | InspectRequest | TokenRequest | EmbedRequest | ShardRequest} Request
 * @typedef {{kind: "taken"}} Taken
 */

/**
 * @typedef {"runtime" | "download" | "device" | "tune" | "weights" | "compile" | "warmup"} Stage
 *
 * @typedef {object} Progress stages overlap; each counts on its own. A load has its `device` when that
 *   is open, and then when it has the memory: what it takes the place of is gone from there on
 * @property {number} id
 * @property {"progress"} kind
 * @property {Stage} stage
 * @property {number} loaded
 * @property {number} total
 * @property {"bytes" | "steps"} unit
 *
 * @typedef {object} Recovery after a loss of the GPU
 * @property {number} id of each request that it concerns
 * @property {"recovery"} kind
 * @property {"paused" | "waiting" | "loading" | "ready" | "moved" | "failed"} state before the next
 *   try; until the browser gives a GPU; the model is loaded anew; it goes on. The client itself says
 *   when the page that had a shared engine is gone: "moved" (the model is loaded anew in another
 *   page), then "ready" or "failed"
 * @property {number} losses in a row, without a token in between
 * @property {DeviceInfo} [device] once it is ready
 * @property {WireError} [error] if it failed: why
 *
 * @typedef {object} Delta new text of the answer, or of its think part, which comes first
 * @property {number} id
 * @property {"delta" | "reasoning"} kind
 * @property {string} text
 * @property {number} num_tokens of the answer so far
 *
 * @typedef {{id: number, kind: "result", value: any}} Result
 * @typedef {{code: string, message: string, hint: string}} WireError codes: engine/errors.py
 * @typedef {{id: number, kind: "error", error: WireError}} ErrorReply
 * @typedef {{kind: "deltas", deltas: Delta[]}} Deltas at most one of each kind of an answer
 * @typedef {Progress | Recovery | Deltas | Result | ErrorReply} Reply
 * @typedef {{kind: "left"}} Left
 */

/**
 * @typedef {object} DeviceInfo
 * @property {"webgpu" | "cpu" | "remote"} kind
 * @property {string} name of a remote server, its origin
 * @property {boolean} software true if the GPU adapter is computed by the CPU
 * @property {string} activations as decided
 * @property {string} [reason] a sentence: why the CPU or a remote server was chosen
 *
 * @typedef {object} ModelInfo
 * @property {string} name
 * @property {string} architecture
 * @property {number} context tokens
 * @property {number} parameters
 * @property {number} bytes size of the file
 * @property {Partial<Record<"temperature" | "top_k" | "top_p" | "min_p" | "repetition_penalty",
 *   number>>} sampling what the file recommends: a `generate` that says nothing else has it
 *
 * @typedef {object} Kept what the browser keeps of a model for the next visit
 * @property {boolean} kept all of it
 * @property {string} [not_kept] if it has no room for it: why, and what could be freed
 *
 * @typedef {object} EngineLoadResult
 * @property {string} key by which other requests name the model
 * @property {DeviceInfo} device
 * @property {ModelInfo} model
 * @property {number} memory_bytes
 * @property {Record<string, number>} memory bytes by purpose
 * @property {number} load_ms
 * @property {VariantTiming[]} variants of kernels, measured in this load
 *
 * @typedef {EngineLoadResult & Kept} LoadResult
 *
 * @typedef {object} VariantTiming
 * @property {string} label the kernel, and the shape and format of its weight
 * @property {string} variant
 * @property {number} us a call
 * @property {number} gb_per_s read and written
 * @property {boolean} right computes what the first variant of the kernel does
 * @property {boolean} chosen
 *
 * @typedef {object} Usage
 * @property {number} prompt_tokens
 * @property {number} cached_tokens of the prompt, those already in the KV cache
 * @property {number} completion_tokens
 *
 * @typedef {object} Timing a remote server's tokens have no queue_ms, prefill_ms, first_step_ms
 * @property {number} ttft_ms time from the request to the first token, the sum of the next three
 * @property {number} [queue_ms] until the device begins: the template, the tokenizer, a model that
 *   comes back, room in the KV cache, others' turns
 * @property {number} [prefill_ms] until the prompt is computed, others' turns meanwhile included
 * @property {number} [first_step_ms] until the engine has the first token: head and sampler
 * @property {number} prefill_tokens_per_s
 * @property {number} decode_tokens_per_s
 * @property {number} [host_ms_per_token] Python's and JavaScript's share
 *
 * @typedef {{token: string, bytes: number[], id: number, logprob: number}} TokenLogprob
 * @typedef {TokenLogprob & {top_logprobs: TokenLogprob[]}} Logprobs
 *
 * @typedef {object} GenerateResult
 * @property {string} text without the think part
 * @property {string} reasoning the think part; empty without one
 * @property {number[]} ids
 * @property {Logprobs[]} [logprobs] of the ids
 * @property {"stop" | "length" | "cancelled"} finish_reason
 * @property {"context.full"} [code] if that is why it ended
 * @property {number} [handle] by which the answer can be continued
 * @property {Usage} usage
 * @property {Timing} timing
 *
 * @typedef {object} Embeddings in OpenAI's shape; vectors, base64 of 32-bit floats, have the length 1
 * @property {"list"} object
 * @property {string} model
 * @property {{object: "embedding", index: number, embedding: string}[]} data
 * @property {{prompt_tokens: number, total_tokens: number}} usage
 *
 * @typedef {object} Measurement
 * @property {number} prefill_tokens_per_s
 * @property {number} decode_tokens_per_s
 * @property {number} host_ms_per_token Python and JavaScript beside waiting for the device, a token after the first
 * @property {number} [encode_ms_per_token] of it, JavaScript that records and submits commands
 * @property {number} dispatches_per_token
 * @property {number} layers
 * @property {number} [skeleton_tokens_per_s] replays a second of the decode plan with idle kernels
 *   in place of all that are no matrix products
 * @property {{tokens: number, ms: number}} [encoded] of the text, if there was one
 * @property {number} chunk tokens in a chunk of the prompt, at the end
 * @property {number} burst decode steps in a burst, at the end
 * @property {Record<string, number>} memory bytes by label
 * @property {Record<string, [string, number, number][]>} kernels of the prefill and decode plans:
 *   label, dispatches, milliseconds; empty if the adapter has no timestamps
 *
 * @typedef {object} Inspection
 * @property {number} tokens of the prompt; the step of the last one was looked into
 * @property {string} token the text of that one
 * @property {number} layers
 * @property {InspectedCall[]} calls in order
 * @property {{id: number, text: string, logit: number, probability: number}[]} top the likeliest
 *   next tokens, by the model's own logits; without those whose logits are not finite
 *
 * @typedef {object} InspectedCall a tensor that a kernel computed, and its values: `low`, `high`,
 *   `mean` and `rms` are of those that are finite, 0 if none is
 * @property {string} name of the weight that was multiplied with; else the operation, or `logits`
 * @property {string} kernel and shape and format of its weight
 * @property {number | null} layer from 0 on; null outside of the layers
 * @property {number[]} shape
 * @property {number} count of the values
 * @property {number} not_finite how many are not a number, or infinite
 * @property {number} low
 * @property {number} high
 * @property {number} mean
 * @property {number} rms the root of the mean of the squares
 *
 * @typedef {object} ListedModel
 * @property {string} id by which it can be loaded
 * @property {string} name
 * @property {boolean} catalogued false if it is there only because it is kept
 * @property {number} [size] bytes
 * @property {number} kept_bytes
 * @property {number} [memory] bytes that it takes of the device
 * @property {number} [context] tokens that it was made for
 * @property {string} [license]
 *
 * @typedef {object} ModelList
 * @property {string} default id
 * @property {ListedModel[]} models
 * @property {string} [encoder] address of the manifest of one, if the catalogue names it
 * @property {{usage: number, quota: number} | null} storage of this site, in bytes; null if the
 *   browser does not say
 *
 * @typedef {object} Status
 * @property {"empty" | "loading" | "ready" | "generating"} state
 * @property {DeviceInfo} [device] of the model that was used or loaded last, as all up to `kv`
 * @property {ModelInfo} [model]
 * @property {number} [memory_bytes]
 * @property {Record<string, number>} [memory] the same by purpose: weights, kv, activations, state
 * @property {number} [answers] under way, of all models
 * @property {KvStatus} [kv] absent while the model is swapped out
 * @property {ModelStatus[]} [models] all that are loaded, the last one last
 * @property {number} [budget_bytes] `memory_bytes` of the last load
 * @property {{model: string, name: string, memory_bytes: number, memory: Record<string, number>}}
 *   [encoder] if one is on a device; its bytes are not in `memory_bytes`, but in the budget
 * @property {number} [clients] that share the engine, which all of this is about
 *
 * @typedef {object} ModelStatus
 * @property {string} model as `load` was given it
 * @property {string} name
 * @property {boolean} resident whether it is on a device; if not, it is swapped out
 * @property {number} memory_bytes
 * @property {number} answers under way
 *
 * @typedef {object} KvStatus blocks are free, used by answers under way, or cached for later prompts
 * @property {"f32" | "f16" | "q8"} precision of what they hold: `kv_precision` of the load, but f32
 *   instead of f16 on the CPU
 * @property {number} block_size tokens
 * @property {number} num_blocks that there are now
 * @property {number} budget_blocks that there may be; fewer once the device has refused memory
 * @property {number} free_blocks
 * @property {number} used_blocks
 * @property {number} shared_blocks used by several answers at once
 * @property {number} cached_blocks
 * @property {string} map what each block is, in the order of their numbers, as runs such as
 *   "o3s1f60": owned by one answer under way, shared by several, cached, free
 * @property {number} hit_rate share of all prompts' tokens that were found in the cache
 * @property {number} tokens whose keys and values used and cached blocks hold
 * @property {number} utilization `tokens`, of those that used and cached blocks could hold
 * @property {number} conversations answers under way that have blocks, and cached sequences: two
 *   that part somewhere are two
 * @property {number} bytes of all blocks there are now
 * @property {number} preallocated_bytes what a whole context set aside for each of `conversations`
 *   would take
 */

export {}; // makes a module of it
