"""Programs of pictures: a classifier, a diffusion transformer, a decoder of convolutions."""
