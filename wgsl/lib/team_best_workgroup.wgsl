// The id of the best score in the workgroup; ties go to the lowest id.
var<workgroup> best_scores: array<f32, WORKGROUP>;
var<workgroup> best_ids: array<u32, WORKGROUP>;

fn team_best(score: f32, id: u32, lane: u32) -> u32 {
  best_scores[lane] = score;
  best_ids[lane] = id;
  workgroupBarrier();
  for (var step_size = WORKGROUP / 2u; step_size > 0u; step_size /= 2u) {
    if (lane < step_size) {
      let other = lane + step_size;
      if (best_scores[other] > best_scores[lane]
          || (best_scores[other] == best_scores[lane] && best_ids[other] < best_ids[lane])) {
        best_scores[lane] = best_scores[other];
        best_ids[lane] = best_ids[other];
      }
    }
    workgroupBarrier();
  }
  return best_ids[0];
}
