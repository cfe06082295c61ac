// The largest, or the sum, of each head's values over all lanes, through workgroup memory.
var<workgroup> heads_scratch: array<f32, HEADS * WORKGROUP>;

fn share_sum(own: f32, lane: u32) -> f32 { return own; }  // a token has one lane

fn fold_heads(own: array<f32, HEADS>, lane: u32, largest: bool) -> array<f32, HEADS> {
  for (var g = 0u; g < HEADS; g++) { heads_scratch[g * WORKGROUP + lane] = own[g]; }
  workgroupBarrier();
  for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
    if (lane < half) {
      for (var g = 0u; g < HEADS; g++) {
        let at = g * WORKGROUP + lane;
        let a = heads_scratch[at];
        let b = heads_scratch[at + half];
        heads_scratch[at] = select(a + b, max(a, b), largest);
      }
    }
    workgroupBarrier();
  }
  var result: array<f32, HEADS>;
  for (var g = 0u; g < HEADS; g++) { result[g] = heads_scratch[g * WORKGROUP]; }
  workgroupBarrier();
  return result;
}
