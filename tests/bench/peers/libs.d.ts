// Types of the peers' libraries, as far as the adapters use them.

declare module "*/lib/wllama/index.js" {
  export class Wllama {
    constructor(paths: { default: string }, config: { logger: object });
    static getLibllamaVersion(): string;
    loadModel(files: Blob[], parameters: object): Promise<void>;
    getNumThreads(): number;
    getLoadedContextInfo(): { n_vocab: number };
    createCompletion(request: {
      prompt: string;
      max_tokens: number;
      stream: boolean;
      onData: () => void;
    }): Promise<unknown>;
  }
}

declare module "*/lib/transformers/transformers.min.js" {
  export const env: {
    version: string;
    allowRemoteModels: boolean;
    allowLocalModels: boolean;
    localModelPath: string;
    useBrowserCache: boolean;
    useWasmCache: boolean;
    backends: {
      onnx: {
        wasm: { wasmPaths: string };
        versions: { web: string };
      };
    };
  };
  export class BaseStreamer {}
  export class Tensor {
    constructor(type: string, data: BigInt64Array, dims: number[]);
  }
  export function pipeline(
    task: string,
    id: string,
    options: { device: string; dtype: string },
  ): Promise<
    (texts: string[], options: object) => Promise<{ data: Float32Array; dims: number[] }>
  >;
  export const AutoModelForCausalLM: {
    from_pretrained(
      id: string,
      options: { device: string; dtype: string },
    ): Promise<{
      config: { vocab_size: number };
      generate(options: object): Promise<unknown>;
    }>;
  };
}

declare module "*/lib/onnxruntime/ort.jspi.bundle.min.mjs" {
  export interface Session {
    run(feeds: Record<string, Tensor>, fetches: Record<string, Tensor>): Promise<unknown>;
  }
  export class Tensor {
    constructor(type: string, data: BigInt64Array, dims: number[]);
    static fromGpuBuffer(
      buffer: GPUBuffer,
      options: { dataType: string; dims: number[] },
    ): Tensor;
  }
  export const InferenceSession: {
    create(graph: Uint8Array, options: object): Promise<Session>;
  };
  export const env: {
    wasm: { wasmPaths: string };
    webgpu: { device: Promise<GPUDevice> };
    versions: { web: string };
  };
}

declare module "*/lib/tokenizers/tokenizers.min.mjs" {
  export class Tokenizer {
    constructor(json: object, config: object);
    encode(text: string, options: { add_special_tokens: boolean }): { ids: number[] };
  }
}
