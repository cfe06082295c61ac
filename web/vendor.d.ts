// Types of the vendored modules, as far as the page uses them.

declare module "*/vendor/marked.esm.js" {
  export interface Token {
    type: string;
    raw: string;
    text?: string;
    lang?: string;
    loose?: boolean;
    task?: boolean;
    tokens?: Token[];
    items?: Token[];
    rows?: unknown[];
  }
  export class Marked {
    constructor(options: {
      gfm?: boolean;
      tokenizer?: Record<string, (source: string) => undefined>;
      renderer?: Record<string, (token: any) => string>;
    });
    lexer(source: string): Token[];
    parser(tokens: Token[]): string;
  }
}

declare module "*/vendor/purify.es.mjs" {
  const DOMPurify: {
    sanitize(html: string, options: object): DocumentFragment;
    addHook(name: string, hook: (node: Element) => void): void;
  };
  export default DOMPurify;
}

declare module "*/vendor/idb.js" {
  export function openDB(
    name: string,
    version: number,
    handlers: { upgrade(db: IDBDatabase): void; blocking(): void; terminated(): void },
  ): Promise<any>;
}

declare module "*/vendor/uPlot.esm.js" {
  type Colour = () => string;
  interface Scale {
    time?: boolean;
    range: (chart: uPlot, low: number | null, high: number | null) => [number, number];
  }
  interface Axis {
    stroke: Colour;
    grid: { stroke: Colour; width: number };
    ticks: { stroke: Colour; width: number };
    values: (chart: uPlot, splits: number[]) => string[];
    size: number;
  }
  export default class uPlot {
    constructor(
      options: {
        width: number;
        height: number;
        legend: { show: boolean };
        cursor: { show: boolean };
        scales: Record<string, Scale>;
        axes: Axis[];
        series: { stroke?: Colour; width?: number; points?: { show: boolean } }[];
      },
      data: (number | null)[][],
      parent: HTMLElement,
    );
    setData(data: readonly (readonly (number | null)[])[]): void;
    setSize(size: { width: number; height: number }): void;
    redraw(): void;
  }
}

declare module "*/vendor/highlight.mjs" {
  const hljs: {
    highlight(code: string, options: { language: string; ignoreIllegals: boolean }): { value: string };
    getLanguage(name: string): object | undefined;
  };
  export default hljs;
}
