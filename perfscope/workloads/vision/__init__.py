"""Programs of pictures: a classifier and a diffusion transformer."""
