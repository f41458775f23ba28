"""What each line became at each stage of its compiler."""
