"""Shows whether a row's bits can be independent of its batch on a GPU, and what that costs."""
