/**
 * Numbers that look random and are the same on every machine: a linear congruential generator with
 * the factors of Numerical Recipes.
 *
 * @param {number} seed
 * @returns {(below: number) => number} whole numbers from 0
 */
export function seeded(seed) {
  let state = Math.imul(seed, 2654435761) >>> 0;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state >>> 8) % below;
  };
}
