// The values of a team of TEAM neighbouring lanes folded, through workgroup memory.
var<workgroup> fold_scratch: array<f32, WORKGROUP>;

fn team_fold(value: f32, lane: u32, how: u32) -> f32 {
  fold_scratch[lane] = value;
  workgroupBarrier();
  for (var step = TEAM / 2u; step > 0u; step /= 2u) {
    if (lane % TEAM < step) {
      fold_scratch[lane] = fold(fold_scratch[lane], fold_scratch[lane + step], how);
    }
    workgroupBarrier();
  }
  let folded = fold_scratch[lane - lane % TEAM];
  workgroupBarrier();
  return folded;
}
