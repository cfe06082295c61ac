// Moves K and V of blocks to a position `moved` tokens earlier, where some of them come into other
// blocks: keys are rotated back by so many positions, values are copied. A thread four elements of
// a head of a token; group.y is a pair of blocks in `shift`: moved, count, then from and to.

fn place(block: u32, rest: u32) -> u32 {
  return (block * KV_HEADS * KV_BLOCK + rest) * (HEAD_DIM / 2u);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let quads = HEAD_DIM / 4u;
  if (id.x >= KV_HEADS * KV_BLOCK * quads || id.y >= shift[1]) { return; }
  let j = id.x % quads;
  let low = rope_low(j) / 2u;
  let high = rope_high(j) / 2u;
  let src = place(shift[2u + 2u * id.y], id.x / quads);
  let dst = place(shift[3u + 2u * id.y], id.x / quads);
  let k = vec4<f32>(unpack2x16float(k_pool[src + low]), unpack2x16float(k_pool[src + high]));
  let r = rotate4_back(k, shift[0], j);
  k_pool[dst + low] = pack2x16float(r.xy);
  k_pool[dst + high] = pack2x16float(r.zw);
  if (src != dst) {
    v_pool[dst + low] = v_pool[src + low];
    v_pool[dst + high] = v_pool[src + high];
  }
}
