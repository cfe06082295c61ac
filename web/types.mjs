/** Types of the JavaScript API: what the methods of client.mjs take and give. */

/**
 * @import { Stream } from "./completions.mjs"
 * @typedef {import("./shapes.mjs").TextLogprobs} TextLogprobs
 * @typedef {import("../worker/protocol.mjs").LoadResult} LoadResult
 * @typedef {import("../worker/protocol.mjs").GenerateResult} GenerateResult
 * @typedef {import("../worker/protocol.mjs").Status} Status
 * @typedef {import("../worker/protocol.mjs").MeasureSizes} MeasureSizes
 * @typedef {import("../worker/protocol.mjs").Measurement} Measurement
 * @typedef {import("../worker/protocol.mjs").Inspection} Inspection
 * @typedef {import("../worker/protocol.mjs").Progress} Progress
 * @typedef {import("../worker/protocol.mjs").ListedModel} ListedModel
 * @typedef {import("../worker/protocol.mjs").ModelList} ModelList
 * @typedef {import("../worker/protocol.mjs").Delta} Delta
 * @typedef {import("../worker/protocol.mjs").Timing} Timing
 * @typedef {import("../worker/protocol.mjs").Usage} TokenUsage
 * @typedef {import("../worker/protocol.mjs").Logprobs} Logprobs
 * @typedef {import("../worker/protocol.mjs").ResponseFormat} ResponseFormat
 * @typedef {import("../worker/protocol.mjs").DeviceInfo} DeviceInfo
 * @typedef {import("../worker/protocol.mjs").InspectedCall} InspectedCall
 * @typedef {import("../worker/protocol.mjs").KvStatus} KvStatus
 * @typedef {import("../worker/protocol.mjs").ModelInfo} ModelInfo
 * @typedef {import("../worker/protocol.mjs").ModelStatus} ModelStatus
 * @typedef {import("../worker/protocol.mjs").Recovery} Recovery
 * @typedef {import("../worker/protocol.mjs").RemoteServer} RemoteServer
 * @typedef {import("../worker/protocol.mjs").Sampling} Sampling
 * @typedef {import("../worker/protocol.mjs").Stage} Stage
 * @typedef {import("../worker/protocol.mjs").TokenLogprob} TokenLogprob
 * @typedef {import("../worker/protocol.mjs").Tool} Tool
 * @typedef {import("../worker/protocol.mjs").ToolCall} ToolCall
 * @typedef {import("../worker/protocol.mjs").VariantTiming} VariantTiming
 * @typedef {import("../worker/protocol.mjs").WireError} WireError
 * @typedef {import("./conversation.mjs").ConversationOptions} ConversationOptions
 * @typedef {import("./conversation.mjs").Said} Said
 * @typedef {import("./conversation.mjs").SendOptions} SendOptions
 *
 * @typedef {object} LoadOptions
 * @property {string | File | File[]} [model] catalogue id; or address (relative to the page) of a
 *   manifest, of a .gguf or of any part of a split one; or .gguf files, all parts of one model. The
 *   catalogue's default if absent
 * @property {boolean} [keep] whether the browser keeps the model for later visits; if absent, it
 *   does, but for files
 * @property {"auto" | "gpu" | "cpu" | "remote"} [device] "auto" if absent: a GPU, else the CPU, else
 *   `remote`, if given
 * @property {import("../worker/protocol.mjs").RemoteServer} [remote] a server that computes with
 *   the device "remote", or with "auto" if the model cannot be loaded on any device here
 * @property {number} [context] tokens; 2048 if absent, and never more than the model was made for
 * @property {"auto" | "f32" | "q16" | "q8"} [activations] whether they may be rounded to integers of
 *   so many bits; "auto" if absent: as suits model and device
 * @property {number} [kv_tokens] room that the KV cache may grow to, for all conversations together;
 *   one context if absent. If it is less, the context is that much
 * @property {number} [kv_bytes] the same in bytes; either of them
 * @property {"f16" | "q8"} [kv_precision] of what the KV cache holds: halves if absent, or bytes with
 *   scales, about half the memory
 * @property {boolean} [tune] measure kernel variants: all (true), none (false), new ones (absent)
 * @property {number} [memory_bytes] on the device that all loaded models, and an encoder, may take
 *   together: those that are there stay, or are swapped out until they are used. If absent, models
 *   are replaced
 *
 * @typedef {object} EmbeddingOptions
 * @property {string} model address of an encoder's manifest; it is loaded when it is first asked
 * @property {string | string[]} input at most 2048 texts; of each as much is taken as fits
 * @property {"auto" | "gpu" | "cpu"} [device] "auto" if absent
 * @property {"float" | "base64"} [encoding_format] of vectors: numbers if absent, or base64 of
 *   32-bit floats
 * @property {AbortSignal} [signal] an abort ends it with `request.cancelled`
 *
 * @typedef {object} Embeddings in OpenAI's shape; vectors have the length 1
 * @property {"list"} object
 * @property {string} model
 * @property {{object: "embedding", index: number, embedding: number[]}[]} data
 * @property {{prompt_tokens: number, total_tokens: number}} usage
 * @typedef {Omit<Embeddings, "data"> & {data: {object: "embedding", index: number,
 *   embedding: string}[]}} Base64Embeddings
 *
 * @typedef {{type: "text", text: string}} TextPart
 * @typedef {import("../worker/protocol.mjs").Message} PlainMessage
 * @typedef {Omit<PlainMessage, "content"> & {content?: string | TextPart[] | null}} ChatMessage
 *
 * @typedef {object} CompletionOptions others of OpenAI's that would change the answer are refused, and
 *   hints mean nothing
 * @property {string} [model] as `load` was given it; the one loaded last if absent
 * @property {ChatMessage[]} [messages] needed, unless `continues` is given
 * @property {boolean} [continue_final_message] the last message is the beginning of the answer, which
 *   is its rest; with `reasoning_content`, what was thought before
 * @property {import("../worker/protocol.mjs").Tool[]} [tools] for models whose template has a place
 *   for them; the model's calls come as the text that it writes
 * @property {number} [continues] `octavo.handle` of an answer that was stopped or ended by its
 *   length: it goes on exactly where it ended
 * @property {number} [temperature] 0: always the likeliest token. What is absent of this, `top_k`,
 *   `top_p`, `min_p` and `repetition_penalty` is as the model's file recommends (`sampling` of the
 *   loaded `model`), else 0 or neutral
 * @property {number} [max_tokens] up to the context if absent
 * @property {number} [max_completion_tokens] the newer name of max_tokens
 * @property {number} [seed] of the draws; 0 if absent
 * @property {string | string[]} [stop] texts before which the answer ends
 * @property {"stop" | "slide"} [context_full] when the context is full, the answer ends with the
 *   code `context.full` (if absent), or the oldest tokens but the first ones are dropped
 * @property {number} [top_k] only tokens that fewer than so many are likelier than; 0: any
 * @property {number} [top_p] only tokens that likelier ones have less than this probability above
 * @property {number} [min_p] only tokens with this part of the likeliest one's probability
 * @property {number} [repetition_penalty] for tokens of conversation and answer; 1: none
 * @property {number} [presence_penalty] for tokens of the answer
 * @property {number} [frequency_penalty] the same, for each time
 * @property {Record<string, number>} [logit_bias] by token id, -100 to 100; ids that the
 *   model has not mean nothing
 * @property {ResponseFormat} [response_format] JSON of a schema, or any JSON object
 * @property {boolean} [logprobs] of the answer's tokens, by the model's own logits
 * @property {number} [top_logprobs] and of so many likeliest ones, at most 20
 * @property {boolean} [stream] in chunks, as it comes
 * @property {AbortSignal} [signal] an abort ends the answer as `stop()` does
 *
 * @typedef {"messages" | "continue_final_message" | "tools" | "logprobs" | "top_logprobs"} OfMessages
 * @typedef {Omit<CompletionOptions, OfMessages>} SharedOptions
 *
 * @typedef {object} TextFields
 * @property {string | number[]} [prompt] a raw text, in which control tokens may be written out, or
 *   token ids; needed, unless `continues` is given
 * @property {number} [logprobs] of how many likeliest tokens they are told, beside the one that came
 *
 * @typedef {SharedOptions & TextFields} TextOptions
 *
 * @typedef {object} InspectOptions
 * @property {string} [model] as `load` was given it; the one loaded last if absent
 * @property {ChatMessage[]} [messages] a conversation
 * @property {import("../worker/protocol.mjs").Tool[]} [tools] for models whose template has a place
 *   for them
 * @property {string | number[]} [prompt] instead: a raw text, or token ids
 * @property {number} [top] how many likeliest tokens are told; 10 if absent
 * @property {AbortSignal} [signal] an abort ends it with `request.cancelled`
 *
 * @typedef {"stop" | "length" | "cancelled"} FinishReason
 * @typedef {TokenUsage & {total_tokens: number}} CompletionUsage
 *
 * @typedef {{role: "assistant", content: string, reasoning_content?: string}} AnswerMessage
 *
 * @typedef {object} ChatCompletion
 * @property {string} id
 * @property {"chat.completion"} object
 * @property {number} created seconds since 1970
 * @property {string} model
 * @property {{index: 0, message: AnswerMessage, logprobs: {content: Logprobs[]} | null,
 *   finish_reason: FinishReason}[]} choices
 * @property {CompletionUsage} usage
 * @property {{ids: number[], timing: Timing, handle?: number, code?: "context.full"}} octavo
 *
 * @typedef {object} ChatCompletionChunk
 * @property {string} id
 * @property {"chat.completion.chunk"} object
 * @property {number} created
 * @property {string} model
 * @property {{index: 0, delta: Partial<AnswerMessage>,
 *   logprobs?: {content: Logprobs[]} | null, finish_reason: FinishReason | null}[]} choices
 *   log-probabilities of the whole answer come in the last chunk
 * @property {CompletionUsage} [usage] in the last chunk
 * @property {{num_tokens: number, ids?: number[], timing?: Timing, handle?: number,
 *   code?: "context.full"}} octavo tokens so far
 *
 * @typedef {object} TextCompletion
 * @property {string} id
 * @property {"text_completion"} object
 * @property {number} created
 * @property {string} model
 * @property {{index: 0, text: string, logprobs: TextLogprobs | null,
 *   finish_reason: FinishReason}[]} choices
 * @property {CompletionUsage} usage
 * @property {ChatCompletion["octavo"]} octavo
 *
 * @typedef {object} TextCompletionChunk
 * @property {string} id
 * @property {"text_completion"} object
 * @property {number} created
 * @property {string} model
 * @property {{index: 0, text: string, logprobs: TextLogprobs | null,
 *   finish_reason: FinishReason | null}[]} choices log-probabilities come in the last chunk
 * @property {CompletionUsage} [usage] in the last chunk
 * @property {ChatCompletionChunk["octavo"]} octavo
 *
 * @typedef {{
 *   (options: CompletionOptions & {stream: true}): Promise<Stream<ChatCompletionChunk>> &
 *     AsyncIterable<ChatCompletionChunk>;
 *   (options: CompletionOptions & {stream?: false}): Promise<ChatCompletion>;
 *   (options: CompletionOptions): Promise<Stream<ChatCompletionChunk> | ChatCompletion>;
 * }} Create
 * @typedef {{
 *   (options: TextOptions & {stream: true}): Promise<Stream<TextCompletionChunk>> &
 *     AsyncIterable<TextCompletionChunk>;
 *   (options: TextOptions & {stream?: false}): Promise<TextCompletion>;
 *   (options: TextOptions): Promise<Stream<TextCompletionChunk> | TextCompletion>;
 * }} CreateText
 * @typedef {{
 *   (options: EmbeddingOptions & {encoding_format?: "float"},
 *     onProgress?: (progress: Progress) => void): Promise<Embeddings>;
 *   (options: EmbeddingOptions & {encoding_format: "base64"},
 *     onProgress?: (progress: Progress) => void): Promise<Base64Embeddings>;
 * }} Embed
 *
 * @typedef {(type: "recovery", listener: (event: CustomEvent<Recovery>) => void,
 *   options?: AddEventListenerOptions | boolean) => void} Listen
 * @typedef {{addEventListener: Listen, removeEventListener: Listen} & EventTarget} Heard
 */

export {}; // makes a module of it
