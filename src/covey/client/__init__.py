"""A client's work: local training, its batches and validation samples, and the tasks of a round."""
