"""From a recipe to results: sessions, runs, grids and the paper's studies."""
