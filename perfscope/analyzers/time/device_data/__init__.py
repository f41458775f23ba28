"""What the rows of device work say of themselves: which step launched them, and whether they can be true."""
