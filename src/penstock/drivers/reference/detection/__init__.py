"""Boxes, regions of images and key points."""
