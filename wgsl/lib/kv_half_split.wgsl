// The pools hold halves, read eight at a time; those of the new token wait in workgroup memory.
alias Row = u32;
var<workgroup> new_k: array<u32, HEAD_DIM / 2u>;
var<workgroup> new_v: array<u32, HEAD_DIM / 2u>;

fn row_of(i: u32) -> Row { return i * (HEAD_DIM / 8u); }

fn put_new(i: u32, k: vec2<f32>, v: vec2<f32>) {
  new_k[i] = pack2x16float(k);
  new_v[i] = pack2x16float(v);
}

fn finish_new(lane: u32, row: Row, store: bool) {
  if (lane < HEAD_DIM / 8u && store) {
    let i = 4u * lane;
    k_pool[row + lane] = new_key_bits(lane);
    v_pool[row + lane] = vec4<u32>(new_v[i], new_v[i + 1u], new_v[i + 2u], new_v[i + 3u]);
  }
}

fn key_bits(row: Row, octet: u32) -> vec4<u32> { return k_pool[row + octet]; }
fn new_key_bits(octet: u32) -> vec4<u32> {
  let i = 4u * octet;
  return vec4<u32>(new_k[i], new_k[i + 1u], new_k[i + 2u], new_k[i + 3u]);
}
fn low_quad(bits: vec4<u32>) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(bits.x), unpack2x16float(bits.y));
}
fn high_quad(bits: vec4<u32>) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(bits.z), unpack2x16float(bits.w));
}
fn value_bits(row: Row, pair: u32) -> u32 { return v_pool[row + pair / 4u][pair % 4u]; }
fn pair_of(bits: u32) -> vec2<f32> { return unpack2x16float(bits); }
