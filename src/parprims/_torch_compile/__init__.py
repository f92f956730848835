"""The nodes of torch.compile, and the rules of torch.func.vmap."""
