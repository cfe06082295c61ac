// Rotates the queries and keys of each token, writes the queries to q and keys and values to
// the paged pools; a thread four elements of a head. qkv rows hold Q, then K, then V heads.
override Q_HEADS: u32;

fn load4(src: u32, j: u32) -> vec4<f32> {
  let low = src + rope_low(j);
  let high = src + rope_high(j);
  return vec4<f32>(qkv[low], qkv[low + 1u], qkv[high], qkv[high + 1u]);
}

fn new_key(src: u32, position: u32, j: u32) -> vec4<f32> {
  return rotate4(load4(src, j), position, j);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let quads = HEAD_DIM / 4u;
  let heads = Q_HEADS + 2u * KV_HEADS;
  if (id.x >= heads * quads || id.y >= step.num_tokens) { return; }
  let head = id.x / quads;
  let j = id.x % quads;
  let position = step.position + id.y;
  let src = (id.y * heads + head) * HEAD_DIM;
  if (head < Q_HEADS) {
    let to = (id.y * Q_HEADS + head) * HEAD_DIM;
    let low = to + rope_low(j);
    let high = to + rope_high(j);
    let r = rotate4(load4(src, j), position, j);
    q[low] = r.x;
    q[low + 1u] = r.y;
    q[high] = r.z;
    q[high + 1u] = r.w;
  } else if (head < Q_HEADS + KV_HEADS) {
    store_key(paged(position, head - Q_HEADS), src, position, j);
  } else {
    store_value(paged(position, head - Q_HEADS - KV_HEADS), src, j);
  }
}
