"""What a backup holds, as values and as text, and how it compares with a node: free of I/O, but for `files`."""
