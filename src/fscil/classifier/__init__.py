"""fit / enroll / forget / predict / save / load for people with folders of photos."""

from fscil.classifier.checking import Check
from fscil.classifier.model import Classifier, Prediction
from fscil.classifier.stored import StoredClassifier

__all__ = ["Check", "Classifier", "Prediction", "StoredClassifier"]
