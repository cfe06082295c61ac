// Activations to 8 bits per block of 32: s = max|x| / 127, xq = round(x / s); a thread a block.
// scales hold s and s * sum(xq), which the zero points of the weights need.
override K: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= K / 32u || id.y >= step.num_tokens) { return; }
  let i = id.y * (K / 32u) + id.x;
  var top = vec4<f32>(0.0);
  for (var j = 0u; j < 8u; j++) { top = max(top, abs(x[i * 8u + j])); }
  let peak = max(max(top.x, top.y), max(top.z, top.w));
  let inverse = select(0.0, 127.0 / peak, peak > 0.0);
  var words: array<u32, 8>;
  var sum = vec4<i32>(0);
  for (var j = 0u; j < 8u; j++) {
    let q = vec4<i32>(round(x[i * 8u + j] * inverse));
    sum += q;
    words[j] = pack4xI8(q);
  }
  let s = peak / 127.0;
  y_quants[2u * i] = vec4<u32>(words[0], words[1], words[2], words[3]);
  y_quants[2u * i + 1u] = vec4<u32>(words[4], words[5], words[6], words[7]);
  y_scales[i] = vec2<f32>(s, s * f32(sum.x + sum.y + sum.z + sum.w));
}
