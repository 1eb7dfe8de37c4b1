"""What a call begins from: the arguments of users, the state of a model, words on its progress."""
