"""What helps those who change the house: its picture, and the check after each edit."""
