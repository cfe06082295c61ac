// Writes block i of 32 activations as integers. With one term, q = round(x / s) in 8 bits,
// |q| <= 127; with two, in 15 bits, q = 128 * high + low, both of them signed bytes. y_scales get
// s and s * sum(q), which the zero points of the weights need.
fn quantize_block(i: u32, block: array<vec4<f32>, 8>) {
  let largest = select(127.0, 16256.0, TERMS == 2u);
  var top = vec4<f32>(0.0);
  for (var j = 0u; j < 8u; j++) { top = max(top, abs(block[j])); }
  let peak = max(max(top.x, top.y), max(top.z, top.w));
  let inverse = select(0.0, largest / peak, peak > 0.0);
  var words: array<u32, 8 * TERMS>;
  var sum = vec4<i32>(0);
  for (var j = 0u; j < 8u; j++) {
    let q = vec4<i32>(round(block[j] * inverse));
    sum += q;
    if (TERMS == 2u) {
      let high = vec4<i32>(round(vec4<f32>(q) / 128.0));
      words[j] = pack4xI8(high);
      words[8u * (TERMS - 1u) + j] = pack4xI8(q - high * 128);
    } else {
      words[j] = pack4xI8(q);
    }
  }
  for (var e = 0u; e < TERMS; e++) {
    var term: array<u32, 8>;
    for (var j = 0u; j < 8u; j++) { term[j] = words[8u * e + j]; }
    store_term(i * TERMS + e, term);
  }
  let s = peak / largest;
  y_scales[i] = vec2<f32>(s, s * f32(sum.x + sum.y + sum.z + sum.w));
}
