"""What happens when torchvision and timm are imported."""
