// As products_whole.wgsl, for weights with d and m for each half of a block.
alias Scale = vec4<f32>;   // d of both, m of both
alias XScale = vec3<f32>;  // s, s * sum(xq) of both if there is an m
alias Dot = vec2<i32>;     // q . xq of both

fn load_x_scale(i: u32) -> XScale {
  let s = x_scales[i].x;
  var sums = vec2<i32>(0);
  if (MINIMA) {
    let ones = vec4<u32>(0x01010101u);
    for (var e = i * TERMS; e < (i + 1u) * TERMS; e++) {
      sums = sums * 128 + both_halves(dot16(x_quants[2u * e], ones),
                                      dot16(x_quants[2u * e + 1u], ones));
    }
  }
  return vec3<f32>(s, s * vec2<f32>(sums));
}

fn both_halves(lo: i32, hi: i32) -> Dot { return vec2<i32>(lo, hi); }

fn scaled(w: Scale, x: XScale, d: Dot) -> f32 {
  let products = x.x * dot(w.xy, vec2<f32>(d));
  if (MINIMA) { return products + dot(w.zw, x.yz); }
  return products;
}
