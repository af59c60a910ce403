"""Reader of networks in the text format of ncnn (`.param`)."""
