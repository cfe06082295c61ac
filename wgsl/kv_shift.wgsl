// Moves K and V of blocks to a position `moved` tokens earlier, where some of them come into other
// blocks: keys are rotated back by so many positions, values are copied. A thread four elements of
// a head of a token; group.y is a pair of blocks in `shift`: moved, count, then from and to.
const QUADS = HEAD_DIM / 4u;
const THREADS = KV_HEADS * KV_BLOCK * QUADS;

fn moved_key(src: u32, moved: u32, j: u32) -> vec4<f32> {
  let row = row_of(src);
  let k = vec4<f32>(key_pair(row, rope_low(j) / 2u), key_pair(row, rope_high(j) / 2u));
  return rotate4_back(k, moved, j);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= THREADS || id.y >= shift[1]) { return; }
  let src = shift[2u + 2u * id.y];
  let dst = shift[3u + 2u * id.y];
  let row = id.x / QUADS;
  move_key(dst * KV_HEADS * KV_BLOCK + row, src * KV_HEADS * KV_BLOCK + row, shift[0], id.x % QUADS);
  if (src != dst) {
    for (var i = id.x; i < WORDS; i += THREADS) { v_pool[dst * WORDS + i] = v_pool[src * WORDS + i]; }
  }
}
