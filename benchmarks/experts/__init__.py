"""Speed and bytes of mixtures of experts against grouped products, padding and a dense layer."""
