"""What is known of the user's model: its layers, their times, the plans made from them, and their updates."""
