// A team of one lane has nothing to compare.
fn team_best(score: f32, id: u32, lane: u32) -> u32 { return id; }
