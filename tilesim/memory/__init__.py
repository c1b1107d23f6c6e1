"""What fills each memory of the chip: buffers, plan and budget."""
