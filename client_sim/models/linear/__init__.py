"""Linear ranking models: on any matrix of features, and the features of the thesis' simulation."""
