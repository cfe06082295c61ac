// Rotates the queries and keys of each token, writes the queries to q and keys and values to
// the paged pools; a thread four elements of a head. qkv rows hold Q, then K, then V heads.
override Q_HEADS: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let quads = HEAD_DIM / 4u;
  let heads = Q_HEADS + 2u * KV_HEADS;
  if (id.x >= heads * quads || id.y >= step.num_tokens) { return; }
  let head = id.x / quads;
  let j = id.x % quads;
  let position = step.position + id.y;
  let low = rope_low(j);
  let high = rope_high(j);
  let src = (id.y * heads + head) * HEAD_DIM;
  let v = vec4<f32>(qkv[src + low], qkv[src + low + 1u], qkv[src + high], qkv[src + high + 1u]);
  if (head < Q_HEADS) {
    let to = (id.y * Q_HEADS + head) * HEAD_DIM;
    let r = rotate4(v, position, j);
    q[to + low] = r.x;
    q[to + low + 1u] = r.y;
    q[to + high] = r.z;
    q[to + high + 1u] = r.w;
  } else if (head < Q_HEADS + KV_HEADS) {
    let to = paged(position, head - Q_HEADS, 2u);
    let r = rotate4(v, position, j);
    k_pool[to + low / 2u] = pack2x16float(r.xy);
    k_pool[to + high / 2u] = pack2x16float(r.zw);
  } else {
    let to = paged(position, head - Q_HEADS - KV_HEADS, 2u);
    v_pool[to + low / 2u] = pack2x16float(v.xy);
    v_pool[to + high / 2u] = pack2x16float(v.zw);
  }
}
