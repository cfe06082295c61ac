// The pools hold bytes: x = s * q with |q| <= 127, and for each 32 elements of a head a scale s, a
// half. A head has the bytes of all tokens of a block, four a word, then their scales, two a word.
const KV_PAIRS = HEAD_DIM / 2u;
const KV_QUADS = HEAD_DIM / 4u;
const KV_SCALES = (HEAD_DIM + 63u) / 64u;
const KV_GROUP = 16u;  // pairs that share a scale

struct Row { quads: u32, scales: u32 }

fn row_of(i: u32) -> Row {
  let start = i / KV_BLOCK * KV_BLOCK * (KV_QUADS + KV_SCALES);
  let token = i % KV_BLOCK;
  return Row(start + token * KV_QUADS, start + KV_BLOCK * KV_QUADS + token * KV_SCALES);
}

// The bits of the scale of a pair, in the word for 32 pairs.
fn scale_bits(word: u32, pair: u32) -> u32 { return (word >> (pair & 16u)) & 0xffffu; }

fn pair_with(bytes: u32, scale: u32) -> vec2<f32> {
  return vec2<f32>(f32(i32(bytes << 24u) >> 24u), f32(i32(bytes << 16u) >> 24u))
       * unpack2x16float(scale).x;
}

fn quad_with(bytes: u32, scale: u32) -> vec4<f32> {
  return vec4<f32>(unpack4xI8(bytes)) * unpack2x16float(scale).x;
}

fn scale_for(peak: f32) -> u32 { return pack2x16float(vec2<f32>(peak / 127.0, 0.0)); }

fn bytes_of(x: vec4<f32>, scale: u32) -> u32 {
  let s = unpack2x16float(scale).x;
  let q = round(x * select(0.0, 1.0 / s, s > 0.0));
  return pack4xI8(vec4<i32>(clamp(q, vec4<f32>(-127.0), vec4<f32>(127.0))));
}
