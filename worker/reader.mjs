/** A nested worker that reads kept shards: see readers.mjs. */

import { readKept } from "./kept.mjs";
import { serve } from "./remote.mjs";

serve(readKept);
